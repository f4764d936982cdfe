"""Answers to choose_warm_up: see test_exercises.py."""

_HEAD = "\ndef choose_warm_up(measure, warm_ups, epsilons, rates):\n"
_SLOW = "How many steps in one bit does a step of the warm-up cost"
_FAST = "What does a longer warm-up save in steps"

MUTANTS = [
    ("always the warm-up in the middle", _SLOW, (("        for warm_up in warm_ups:\n", "        for warm_up in warm_ups[2:3]:\n"),)),
    ("the shortest warm-up", _FAST, (("return min(seen, key=seen.get)", "return min((c for c in seen if c[0] == 2), key=seen.get)"),)),
    ("the longest warm-up", _SLOW, (("return min(seen, key=seen.get)", "return min((c for c in seen if c[0] == 40), key=seen.get)"),)),
    ("Adam's usual epsilon", _SLOW, _HEAD + "    tried = [(w, epsilons[0], lr) for w in warm_ups for lr in rates]\n    return min(tried, key=lambda choice: measure(*choice))\n"),
    ("the lesson's 15 % of the steps, and its epsilon", _SLOW, _HEAD + "    return 20, 1e-4, 0.08\n"),
    ("the lesson's 48 steps", "is not possible", _HEAD + "    return 48, 1e-4, 0.08\n"),
    ("everything is measured", "no more may be", (("    for _, eps, lr in sorted(seen, key=seen.get)[:3]:\n", "    for _, eps, lr in sorted(seen, key=seen.get):\n"),)),
    ("the slowest", "the best choice takes", (("return min(seen, key=seen.get)", "return max(seen, key=seen.get)"),)),
    ("the best at the middle warm-up, and no other learning rate", _FAST, (("key=seen.get)[:3]", "key=seen.get)[:1]"),)),
    ("exchanged", "is not possible", (("return min(seen, key=seen.get)", "return min(seen, key=seen.get)[::-1]"),)),
    ("no epsilon", "a choice is 3 things", _HEAD + "    return warm_ups[0], rates[-1]\n"),
]  # fmt: skip

ACCEPTED = [
    (
        "two epsilons and two learning rates at all warm-ups",
        _HEAD
        + """    tried = [(w, eps, lr) for w in warm_ups for eps in epsilons[1:] for lr in rates[2:]]
    return min(tried, key=lambda choice: measure(*choice))
""",
    ),
    (
        "shortest and longest first, then what is between them, as a list",
        _HEAD
        + """    found = {}
    for eps in epsilons[1:]:
        for lr in rates[1:]:
            for w in (warm_ups[0], warm_ups[3]):
                found[w, eps, lr] = measure(w, eps, lr)
    for w, eps, lr in sorted(found, key=found.get)[:6]:
        for between in warm_ups[1:3]:
            found[between, eps, lr] = measure(between, eps, lr)
    return list(min(found, key=found.get))
""",
    ),
]

NOTHING = [
    ("nothing is chosen", _HEAD + "    return None\n"),
    ("the first choice that there is", _HEAD + "    return warm_ups[0], epsilons[0], rates[0]\n"),
]
