"""Answers to diagnose_outer: see test_exercises.py."""

_SIGN = '    if is_so(sign=-1.0):\n        return "wrong sign", None\n'
_LOST = '    if is_so(keeps=False):\n        return "momentum lost", None\n'
_ALONE = '        if is_so(alone=rank):\n            return "alone", rank\n'
_BEHIND = '        if is_so(behind=rank):\n            return "a step behind", rank\n'
_CLOSE = "torch.allclose(expected, models[step], rtol=1e-5, atol=1e-5)"

# The lesson's: how far the ranks are apart after a meeting.
_LESSONS = """
def diagnose_outer(models, gradients, lr, period, outer_lr, momentum):
    for after in models[period::period]:
        apart = (after - after.mean(0)).norm(dim=1)
        if apart.max() > 1e-3:
            return "alone", int(apart.argmax())
    return "healthy", None
"""

MUTANTS = [
    ("the lesson's distance, and nothing else", "Of which models is it the mean", _LESSONS),
    ("wrong sign is never said", "where the outer step goes", ((_SIGN, ""),)),
    ("momentum lost is never said", "carry on from the first", ((_LOST, ""),)),
    ("alone is never said", "whose mean is it", ((_ALONE, ""),)),
    ("a step behind is never said", "Of which models is it the mean", ((_BEHIND, ""),)),
    (
        "alone: the rank after it",
        "whose mean is it",
        ((_ALONE, _ALONE.replace('"alone", rank', '"alone", rank + 1')),),
    ),
    (
        "behind: no rank",
        "Of which models is it the mean",
        ((_BEHIND, _BEHIND.replace('behind", rank', 'behind", None')),),
    ),
    (
        "only the first ranks are tried",
        "whose mean is it",
        (
            (
                "    for rank in ranks:\n        if is_so(alone",
                "    for rank in range(2):\n        if is_so(alone",
            ),
        ),
    ),
    (
        "only the first meeting is looked at",
        "carry on from the first",
        (
            (
                "for step in range(period, len(models), period):",
                "for step in range(period, period + 1):",
            ),
        ),
    ),
    (
        "the gradient of the step after",
        "What does a right meeting make of these models",
        (("lr * gradients[step - 1]", "lr * gradients[step % len(gradients)]"),),
    ),
    (
        "the alone rank is in the others' mean",
        "whose mean is it",
        (("ends[others].mean(0), ends[alone]", "ends.mean(0), ends[alone]"),),
    ),
    (
        "momentum without Nesterov",
        "What does a right meeting make of these models",
        (("outer_lr * (delta + momentum * velocity)", "outer_lr * velocity"),),
    ),
    (
        "the outer rate is forgotten",
        "What does a right meeting make of these models",
        (("start - outer_lr * (delta", "start - (delta"),),
    ),
    (
        "rounds that all begin at the start",
        "What does a right meeting make of these models",
        (("            start = models[step]\n", ""),),
    ),
    (
        "a tolerance that single precision does not meet",
        "rounded to single precision",
        ((_CLOSE, "torch.allclose(expected, models[step], rtol=0.0, atol=1e-13)"),),
    ),
    (
        "a tolerance that meets everything",
        "whose mean is it",
        ((_CLOSE, "torch.allclose(expected, models[step], atol=99.0)"),),
    ),
    (
        "what is wrong, without a rank",
        "A diagnosis is two things",
        ((_SIGN, _SIGN.replace('"wrong sign", None', '"wrong sign"')),),
    ),
    (
        "the rank by the number of ranks",
        "whose mean is it",
        (("for rank in ranks:", "for rank in (len(ranks) // 2,):"),),
    ),
]

ACCEPTED = [
    (
        "step by step from the record itself",
        """
import torch


def diagnose_outer(models, gradients, lr, period, outer_lr, momentum):
    p = models.shape[1]
    meetings = range(period, len(models), period)

    def same(a, b):
        return bool((a - b).abs().max() < 1e-4)

    for t in meetings:
        after = models[t]
        pairs = [[same(a, b) for a in after] for b in after]
        for rank in range(p):
            if sum(pairs[rank]) == 1:
                return "alone", rank
    # All have one model: which delta has made it, if momentum was kept, and if not?
    for keeps in (True, False):
        velocity, deltas = 0.0, []
        for t in meetings:
            # x - x' = eta (delta + mu (mu v + delta))
            moved = (models[t - period, 0] - models[t, 0]) / outer_lr
            carried = velocity if keeps else 0.0
            delta = (moved - momentum**2 * carried) / (1 + momentum)
            velocity = momentum * carried + delta
            deltas.append(delta)
        ends = [models[t - 1] - lr * gradients[t - 1] for t in meetings]
        starts = [models[t - period, 0] for t in meetings]
        expected = [start - end.mean(0) for start, end in zip(starts, ends)]
        if all(same(d, e) for d, e in zip(deltas, expected)):
            return ("healthy" if keeps else "momentum lost"), None
        if all(same(d, -e) for d, e in zip(deltas, expected)):
            return "wrong sign", None
        for rank in range(p):
            steps = [lr * gradients[t - 1, rank] / p for t in meetings]
            if all(same(d, e - step) for d, e, step in zip(deltas, expected, steps)):
                return "a step behind", rank
    return "healthy", None
""",
    ),
    (
        "in the relative 2-norm, of all that the step has changed",
        (
            (
                "if not " + _CLOSE + ":",
                "if (expected - models[step]).norm() > 1e-4 * (start - models[step]).norm():",
            ),
        ),
    ),
]

NOTHING = [
    (
        "always healthy",
        '\ndef diagnose_outer(models, gradients, lr, period, outer_lr, momentum):\n    return "healthy", None\n',
    ),
    (
        "always wrong sign",
        '\ndef diagnose_outer(models, gradients, lr, period, outer_lr, momentum):\n    return "wrong sign", None\n',
    ),
]
