"""Answers to diagnose_server: see test_exercises.py."""

_NEVER = '            if who not in may_push:\n                return "never pulls", who\n'
_LATE = "                if pulled[worker] < version:\n"

MUTANTS = [
    ("never pulls is never said", "What lies between two pushes", ((_NEVER, ""), ("may_push.remove", "may_push.discard"))),
    ("late is never said", "How many updates lie between", ((_LATE, "                if False:\n"),)),
    ("one update late is not late", "How many updates lie between", ((_LATE, "                if pulled[worker] < version - 1:\n"),)),
    ("three updates late is not late", "How many updates lie between", ((_LATE, "                if pulled[worker] < version - 3:\n"),)),
    ("the worker after the late one", "How many updates lie between", (('return "late gradient applied", worker', 'return "late gradient applied", worker + 1'),)),
    ("without its name", "How many updates lie between", (('return "late gradient applied", worker', 'return "late gradient applied", None'),)),
    ("the mean is never computed", "How far does the parameter move", (("> 1e-9", "> 1e9"),)),
    ("divided by all is right", "How many updates lie between", (("for worker in who) / wanted", "for worker in who) / p"),)),
    ("a sum", "All is right there", (("for worker in who) / wanted", "for worker in who)"),)),
    ("gradients of the first pushes", "All is right there", (("pushed[who] = next(coming)", "pushed[who] = gradients[version]"),)),
    ("dropped gradients count as late", "All is right there", (('elif what == "apply":\n            for worker in who:', 'elif what in ("apply", "drop"):\n            for worker in (who if what == "apply" else (who,)):'),)),
    ("what is wrong, without a worker", "A diagnosis is two things", (('return "healthy", None', 'return "healthy"'),)),
    ("a version too many", "How many updates lie between", (("pulled[who] = version", "pulled[who] = version - 1"),)),
]  # fmt: skip

ACCEPTED = [
    (
        "each fault in a pass of its own",
        """
def diagnose_server(log, gradients, x, lr, p, wanted):
    last = {}
    for what, who in log:
        if what in ("push", "pull"):
            if what == "push" and last.get(who) == "push":
                return "never pulls", who
            last[who] = what
    updates = [i for i, (what, _) in enumerate(log) if what == "apply"]
    for number, i in enumerate(updates):
        before = updates[number - 1] if number else -1
        for w in log[i][1]:
            if max(j for j in range(i) if log[j] == ("pull", w)) < before:
                return "late gradient applied", w
    pushes = [i for i, (what, _) in enumerate(log) if what == "push"]
    for number, i in enumerate(updates):
        used = 0.0
        for w in log[i][1]:
            used += gradients[max(n for n, j in enumerate(pushes) if j < i and log[j][1] == w)]
        if abs((x[number] - x[number + 1]) - lr * used / p) < 1e-12:
            return "divided by all", None
    return "healthy", None
""",
    ),
    (
        "the moved distance is compared with both divisors, relatively",
        (
            (
                "            if abs(x[version] - lr * mean - x[version + 1]) > 1e-9:\n",
                "            moved = x[version] - x[version + 1]\n"
                "            if abs(moved - lr * mean * wanted / p) < abs(moved - lr * mean):\n",
            ),
        ),
    ),
]

NOTHING = [
    (
        "always healthy",
        '\ndef diagnose_server(log, gradients, x, lr, p, wanted):\n    return "healthy", None\n',
    ),
    (
        "always the mean",
        '\ndef diagnose_server(log, gradients, x, lr, p, wanted):\n    return "divided by all", None\n',
    ),
    (
        "always worker 0",
        '\ndef diagnose_server(log, gradients, x, lr, p, wanted):\n    return "never pulls", 0\n',
    ),
]
