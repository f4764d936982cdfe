"""Answers to diagnose_worker: see test_exercises.py."""

_HEAD = "\ndef diagnose_worker(log, gradients, x, curves, goals, ahead):\n"
_BOUND = "            if pushed[w] - min(pushed) > ahead:\n"
_VERSION = "version, pushed[w], g = version + 1, pushed[w] + 1, next(coming)"
_COPY = "        if same[w][2] == same[w][0]:\n"
_HEALTHY = "Here each gradient is that of the parameters"
_AT = "At which of all the parameters"
_PUSH = "How does what this worker pushes differ"
_TWICE = "Which of this worker's pushes"
_FAR = "How many steps was each worker ahead"

MUTANTS = [
    ("a copy is never said", _AT, ((_COPY, "        if False:\n"),)),
    ("the bound is never looked at", _FAR, ((_BOUND, "            if False:\n"),)),
    ("one step too far is not too far", _FAR, ((_BOUND, _BOUND.replace("> ahead", "> ahead + 1")),)),
    ("as far as it may be is too far", _HEALTHY, ((_BOUND, _BOUND.replace("> ahead", ">= ahead")),)),
    (
        "ahead of the fastest of the others",
        _FAR,
        ((_BOUND, _BOUND.replace("min(pushed)", "max(pushed)")),),
    ),
    (
        "at the newest parameters, as in lock-step",
        _HEALTHY,
        (("pulled.setdefault(w, []).append(version)", "pulled.setdefault(w, []).append(version)\n            pulled[w][-1:] = [len(x) - 1]"),),
    ),
    (
        "the update counts before its gradient does",
        _HEALTHY,
        (("pulled.setdefault(w, []).append(version)", "pulled.setdefault(w, []).append(max(0, version - 1))"),),
    ),
    (
        "the server's staleness, which is right with a copy too",
        _AT,
        _HEAD
        + """    pushed = [0] * len(curves)
    for what, w in log:
        if what == "push":
            pushed[w] += 1
        elif pushed[w] - min(pushed) > ahead:
            return "bound", w
    return "healthy", None
""",
    ),
    (
        "the same gradient twice is a copy",
        _TWICE,
        ((_COPY, "        if same[w][1] == same[w][0]:\n"),),
    ),
    ("not cleared is never said", _PUSH, (("        if not all(same[w]):\n", "        if False:\n"),)),
    ("the worker after", _AT, (('return "copy", w', 'return "copy", (w + 1) % p'),)),
    ("without its name", _FAR, (('return "bound", w', 'return "bound", None'),)),
    ("what is wrong, without a worker", "A diagnosis is two things", (('return "healthy", None', 'return "healthy"'),)),
    (
        "the gradient without the curve",
        _HEALTHY,
        (("[c * (a - b) for", "[(a - b) for"),),
    ),
    ("pushes twice is taken for not cleared", _TWICE, (('return "pushes twice", w', 'return "not cleared", w'),)),
]  # fmt: skip

ACCEPTED = [
    (
        "each fault in a pass of its own, in torch",
        """
import torch


def diagnose_worker(log, gradients, x, curves, goals, ahead):
    X, G = torch.tensor(x, dtype=torch.double), torch.tensor(gradients, dtype=torch.double)
    curves, goals = (torch.tensor(one, dtype=torch.double) for one in (curves, goals))
    done = torch.zeros(len(curves))
    for what, w in log:
        if what == "push":
            done[w] += 1
        elif done[w] - done.min() > ahead:
            return ["bound", w]
    for w in range(len(curves)):
        version, expected, got, at = 0, [], [], None
        for what, who in log:
            if what == "pull" and who == w:
                at = version
            elif what == "push":
                if who == w:
                    expected.append(curves[w] * (X[at] - goals[w]))
                    got.append(G[version])
                version += 1
        right, got = torch.stack(expected), torch.stack(got)

        def same(a, b):
            return torch.allclose(a, b, rtol=1e-7, atol=1e-9)

        if same(got, right):
            continue
        if same(got, right[:1].expand_as(got)):
            return "copy", w
        if same(got, right.cumsum(0)):
            return "not cleared", w
        if same(got[1::2], got[: len(got) // 2 * 2 : 2]):
            return "pushes twice", w
    return "healthy", None
""",
    ),
    (
        "by what a push adds to the one before",
        """
def diagnose_worker(log, gradients, x, curves, goals, ahead):
    count, at, mine = {}, {}, {}
    number = 0
    for what, w in log:
        if what == "pull":
            others = [count.get(other, 0) for other in range(len(curves))]
            if count.get(w, 0) > min(others) + ahead:
                return "bound", w
            at[w] = x[number]
        else:
            count[w] = count.get(w, 0) + 1
            now = [c * (p - q) for c, p, q in zip(curves[w], at[w], goals[w])]
            mine.setdefault(w, []).append((gradients[number], now))
            number += 1
    near = lambda a, b: max(abs(p - q) for p, q in zip(a, b)) < 1e-8
    for w, pairs in mine.items():
        wrong = [k for k, (got, right) in enumerate(pairs) if not near(got, right)]
        if not wrong:
            continue
        if all(near(got, pairs[0][0]) for got, _ in pairs):
            return "copy", w
        k = wrong[0]
        if near(pairs[k][0], pairs[k - 1][0]):
            return "pushes twice", w
        return "not cleared", w
    return "healthy", None
""",
    ),
]

NOTHING = [
    ("always healthy", _HEAD + '    return "healthy", None\n'),
    ("always worker 0's copy", _HEAD + '    return "copy", 0\n'),
]
