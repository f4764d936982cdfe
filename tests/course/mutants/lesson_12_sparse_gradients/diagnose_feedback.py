"""Answers to diagnose_feedback: see test_exercises.py."""

_NONE = '    if would_send(feedback=False):\n        return "no feedback", None\n'
_SIGNED = '    if would_send(signed=True):\n        return "signed", None\n'
_TWICE = '    if would_send(keeps=True):\n        return "sent twice", None\n'
_FORGOT = '            return "forgotten", step\n'

# The lesson's class: it says whether the record is right, and nothing else.
_LESSONS = """
import torch


def diagnose_feedback(gradients, sent, k):
    left = 0.0
    for g, s in zip(gradients, sent):
        x = g + left
        places = x.abs().topk(k).indices
        mine = torch.zeros_like(x).index_copy(0, places, x[places])
        left = x - mine
        if not torch.allclose(mine, s, atol=1e-6):
            return "no feedback", None
    return "healthy", None
"""

MUTANTS = [
    ("the lesson's error feedback, and a guess", "Which numbers wait", _LESSONS),
    ("no feedback is never said", "anything of an earlier gradient", ((_NONE, ""),)),
    ("signed is never said", "Which numbers wait", ((_SIGNED, ""),)),
    ("sent twice is never said", "is it more than the gradients", ((_TWICE, ""),)),
    (
        "the step after the one that forgot",
        "From where on is something missing",
        ((_FORGOT, '            return "forgotten", step + 1\n'),),
    ),
    (
        "the first steps are not looked at",
        "From where on is something missing",
        (("for step in range(1, len(gradients))", "for step in range(2, len(gradients))"),),
    ),
    (
        "the last steps are not looked at",
        "From where on is something missing",
        (("for step in range(1, len(gradients))", "for step in range(1, len(gradients) - 1)"),),
    ),
    (
        "the step it is forgotten after is not said",
        "From where on is something missing",
        ((_FORGOT, '            return "forgotten", None\n'),),
    ),
    (
        "a tolerance that single precision does not meet",
        "does any of your comparisons ever hold",
        (("rtol=1e-5, atol=1e-6", "rtol=1e-14, atol=1e-14"),),
    ),
    (
        "a tolerance that meets everything",
        "ever hold, or all of them",
        (("rtol=1e-5, atol=1e-6", "rtol=9.0, atol=99.0"),),
    ),
    (
        "equal to the last bit",
        "rounded to single precision",
        (
            (
                "torch.allclose(torch.stack(found), sent, rtol=1e-5, atol=1e-6)",
                "torch.equal(torch.stack(found), sent)",
            ),
        ),
    ),
    (
        "one number more is expected",
        "anything of an earlier gradient",
        (("topk(k).indices", "topk(k + 1).indices"),),
    ),
    (
        "what is wrong, without a step",
        "A diagnosis is two things",
        (
            (
                '        return "healthy", None\n    if would_send(feedback=False)',
                '        return "healthy"\n    if would_send(feedback=False)',
            ),
        ),
    ),
    (
        "the step in the middle",
        "From where on is something missing",
        (
            (
                "for step in range(1, len(gradients)):",
                "for step in (len(gradients) // 2,):",
            ),
        ),
    ),
]

ACCEPTED = [
    (
        "step by step from the record itself",
        """
import torch


def diagnose_feedback(gradients, sent, k):
    steps = len(gradients)

    def same(x, s, signed=False):
        at = (x if signed else x.abs()).topk(k).indices
        y = torch.zeros_like(x)
        y[at] = x[at]
        return bool((y - s).abs().max() < 1e-4)

    before = torch.cumsum(gradients, 0) - torch.cumsum(sent, 0)
    left = torch.cat([torch.zeros_like(before[:1]), before[:-1]])
    right = [same(gradients[t] + left[t], sent[t]) for t in range(steps)]
    if all(right):
        return "healthy", None
    if all(same(gradients[t], sent[t]) for t in range(steps)):
        return "no feedback", None
    if all(same(gradients[t] + left[t], sent[t], signed=True) for t in range(steps)):
        return "signed", None
    if all(same(gradients[: t + 1].sum(0), sent[t]) for t in range(steps)):
        return "sent twice", None
    for s in range(1, steps):
        rest = gradients[s:].cumsum(0) - sent[s:].cumsum(0)
        rest = torch.cat([torch.zeros_like(rest[:1]), rest[:-1]])
        if all(right[:s]) and all(same(gradients[t] + rest[t - s], sent[t]) for t in range(s, steps)):
            return "forgotten", s
""",
    ),
    (
        "in the relative 2-norm",
        (
            (
                "return torch.allclose(torch.stack(found), sent, rtol=1e-5, atol=1e-6)",
                "return bool((torch.stack(found) - sent).norm() < 1e-5 * sent.norm())",
            ),
        ),
    ),
]

NOTHING = [
    (
        "always healthy",
        '\ndef diagnose_feedback(gradients, sent, k):\n    return "healthy", None\n',
    ),
    (
        "always signed",
        '\ndef diagnose_feedback(gradients, sent, k):\n    return "signed", None\n',
    ),
]
