"""Answers to choose_asynchronous: see test_exercises.py."""

_HEAD = "\ndef choose_asynchronous(measure, rules, bounds, rates):\n"
_ALIKE = "What does a bound wait for"
_OWN = "Whose data count how often"
_ROUGH = "After how many updates of each worker"

# The lesson's: the parabola's limit for the staleness of equal workers.
_LESSONS = """
import math


def choose_asynchronous(measure, rules, bounds, rates):
    staleness = 7
    limit = 8 * 2 * math.sin(math.pi / (4 * staleness + 2))
    return "plain", bounds[-1], max(lr for lr in rates if lr < limit)
"""

MUTANTS = [
    ("never divided", _ALIKE, (("    for rule in rules:\n", "    for rule in rules[:1]:\n"),)),
    ("the lesson's limit, and no bound", _OWN, _LESSONS),
    ("always divided", _OWN, (("    for rule in rules:\n", "    for rule in rules[1:]:\n"),)),
    ("lock-step", _ALIKE, _HEAD + "    return rules[0], bounds[0], 1.0\n"),
    (
        "never a bound",
        _OWN,
        (
            ("bounds[len(bounds) // 2]", "bounds[-1]"),
            ("min(bounds, key", "min(bounds[-1:], key"),
        ),
    ),
    (
        "always the bound in the middle",
        _ALIKE,
        (("min(bounds, key", "min(bounds[2:3], key"),),
    ),
    ("the lesson's bound of two steps", "is not possible", _HEAD + "    return rules[0], 2, 1.0\n"),
    (
        "one learning rate for both rules",
        _ALIKE,
        (("min(rates, key=lambda lr: seconds(rule, middle, lr))", "rates[2]"),),
    ),
    (
        "everything is measured",
        "no more may be",
        (("        at = rates.index(lr)\n", "        [seconds(rule, b, r) for b in bounds for r in rates]\n        at = rates.index(lr)\n"),),
    ),
    ("the slowest", "the best choice takes", (("return min(seen, key=seen.get)", "return max(seen, key=seen.get)"),)),
    (
        "exchanged",
        "is not possible",
        (("return min(seen, key=seen.get)", "rule, bound, lr = min(seen, key=seen.get)\n    return bound, rule, lr"),),
    ),
    ("no rule is named", "a choice is 3 things", _HEAD + "    return bounds[-1], rates[2]\n"),
    (
        "the smallest learning rate",
        _ALIKE,
        _HEAD + "    tried = [(rule, bound, rates[0]) for rule in rules for bound in bounds]\n    return min(tried, key=lambda choice: measure(*choice))\n",
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "each rule at the two learning rates that the bound in the middle likes best",
        _HEAD
        + """    found = {}
    for rule in rules:
        for lr in rates[1:3] if rule == "plain" else rates[-2:]:
            for bound in bounds:
                found[rule, bound, lr] = measure(rule, bound, lr)
    return min(found, key=found.get)
""",
    ),
    (
        "downhill from the best of a coarse grid, as a list",
        _HEAD
        + """    seen = {}

    def seconds(choice):
        if choice not in seen:
            if len(seen) == 24:
                return float("inf")
            seen[choice] = measure(*choice)[0]
        return seen[choice]

    # Dividing wants a learning rate some four times as large and more.
    starts = [("plain", bound, lr) for bound in (bounds[0], bounds[2], bounds[-1]) for lr in (0.5, 1.0)]
    starts += [("divided", bound, lr) for bound in (bounds[2], bounds[-1]) for lr in (4.0, 8.0)]
    for start in starts:
        seconds(start)
    for rule in rules:
        now = min((c for c in seen if c[0] == rule), key=seen.get)
        while True:
            i, j = bounds.index(now[1]), rates.index(now[2])
            near = [(rule, b, now[2]) for b in bounds[max(0, i - 1) : i + 2]]
            near += [(rule, now[1], lr) for lr in rates[max(0, j - 1) : j + 2]]
            best = min(near, key=seconds)
            if seconds(best) >= seconds(now):
                break
            now = best
    return list(min(seen, key=seen.get))
""",
    ),
]

NOTHING = [
    ("nothing is chosen", _HEAD + "    return None\n"),
    ("the first choice that there is", _HEAD + "    return rules[0], bounds[0], rates[0]\n"),
]
