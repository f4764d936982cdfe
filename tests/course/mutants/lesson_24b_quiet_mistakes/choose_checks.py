"""Answers to choose_checks: see test_exercises.py."""

_BEST = "return min(seen, key=seen.get)"
_FORMULA = "return min(choices, key=predicted)"
_COUNTS = "(replicas - gradients, gradients, samples)"
_FOUND = "found_after = (between[0], min(between[:2]), between[2])"
_COST = "step = step_seconds + sum(c / n for c, n in zip(costs, between, strict=True))"
_TRIED = "sorted(choices, key=predicted)[:3]"

_BY_COUNTS = """
def choose_checks(measure, steps, step_seconds, check_seconds):
    seconds, replicas, gradients, samples = measure(4, 4, 4)
    reading = 4 if samples > 2 else 0
    seen = {(4, 4, 4): seconds}
    for pair in ((4, 0), (0, 4), (4, 4)):
        choice = (*pair, reading)
        if choice not in seen:
            seen[choice] = measure(*choice)[0]
    return list(min(seen, key=seen.get))
"""

_PLAYED = """
import random


def played(seed, choice, steps, step_seconds, costs, rates):
    draw, where = random.Random(seed), [(0,), (0, 1), (2,)]
    seconds, done, copies, wrong = 0.0, 0, [0], {}
    for _ in range(8 * steps):
        seconds, done = seconds + step_seconds, done + 1
        for kind, rate in enumerate(rates):
            if draw.random() < rate:
                wrong.setdefault(kind, done)
        due = [i for i in range(3) if done == steps or choice[i] and done % choice[i] == 0]
        seconds += sum(costs[i] for i in due)
        bad = [kind for kind in wrong if set(where[kind]) & set(due)]
        if bad:
            done = max(copy for copy in copies if all(copy < wrong[kind] for kind in bad))
            copies = [copy for copy in copies if copy <= done]
            wrong = {kind: at for kind, at in wrong.items() if at <= done}
        elif done == steps:
            break
        elif due:
            copies.append(done)
    return seconds


def choose_checks(measure, steps, step_seconds, check_seconds):
    costs = [check_seconds[name] for name in ("replicas", "gradients", "samples")]
    seconds, *counts = measure(4, 4, 4)
    performed = seconds / (step_seconds + sum(costs) / 4)
    rates = [max(n, 0) / performed for n in (counts[0] - counts[1], *counts[1:])]
    choices = [(r, g, s) for r in (0, 4, 16) for g in (0, 4, 16) for s in (0, 4, 16)]
    given = (steps, step_seconds, costs, rates)
    choices.sort(key=lambda choice: sum(played(seed, choice, *given) for seed in range(8)))
    seen = {choice: measure(*choice)[0] for choice in choices[:3]}
    return min(seen, key=seen.get)
"""

MUTANTS = [
    ("all of them, often", "What does `gradients` find", ((_BEST, "return first"),)),
    ("weights are not compared", "mistake that only `replicas` sees", ((_BEST, "return (0, 4, 4)"),)),
    ("samples are not compared", "mistake that only `samples` sees", ((_BEST, "return (4, 0, 0)"),)),
    ("weights are always compared", "What does `replicas` find", ((_BEST, "return (4, 0, 4)"),)),
    (
        "a lost hook counts as a flip too",
        "What does `replicas` find",
        ((_COUNTS, "(replicas, gradients, samples)"), (_BEST, _FORMULA)),
    ),
    (
        "looks cost nothing",
        "What does `gradients` find",
        ((_COST, "step = step_seconds"), (_BEST, "return min(reversed(choices), key=predicted)")),
    ),
    (
        "a lost hook is seen by gradients alone",
        "What does `gradients` find",
        ((_FOUND, "found_after = between"), (_BEST, _FORMULA)),
    ),
    ("all are measured", "no more may be", ((_TRIED, "choices"),)),
    ("between the choices", "is not possible", ((_BEST, "return (8, 0, 4)"),)),
    ("a number", "a choice is 3 things", ((_BEST, "return 4"),)),
]  # fmt: skip

_ARGUMENTS = "(measure, steps, step_seconds, check_seconds)"
NOTHING = [
    ("none", f"\ndef choose_checks{_ARGUMENTS}:\n    return None\n"),
    ("only after the last step", f"\ndef choose_checks{_ARGUMENTS}:\n    return 0, 0, 0\n"),
]

ACCEPTED = [
    ("by what was found, without a formula", _BY_COUNTS),
    ("played through before it is measured", _PLAYED),
]
