"""Answers to choose_batch: see test_exercises.py."""

_TIME = "        return steps * step_seconds\n"
_NEAR = "nearby(at, way))"
_RETURN = "    return accumulations[place], rates[at]\n"

MUTANTS = [
    (
        "the fewest steps",
        "Which batch needs the fewest samples",
        ((_TIME, "        return steps\n"),),
    ),
    (
        "the fewest samples",
        "how many steps does the larger batch save",
        ((_TIME, "        return steps * accumulations[place]\n"),),
    ),
    (
        "the learning rate of one batch for all",
        "at its own best learning rate",
        ((_NEAR, "[at])"),),
    ),
    (
        "the linear rule, from a tuned batch to the largest",
        "Was it tried before",
        """
def choose_batch(measure, accumulations, rates):
    lr = min(rates, key=lambda one: measure(4, one)[0])
    wanted = lr * accumulations[-1] / 4
    return accumulations[-1], min(rates, key=lambda one: abs(one - wanted))
""",
    ),
    (
        "the largest batch, well tuned",
        "Which batch needs the fewest samples",
        """
def choose_batch(measure, accumulations, rates):
    return accumulations[-1], min(rates, key=lambda one: measure(accumulations[-1], one)[0])
""",
    ),
    (
        "the smallest batch that trains, well tuned",
        "how many steps does the larger batch save",
        """
def choose_batch(measure, accumulations, rates):
    return 2, min(rates, key=lambda one: measure(2, one)[0])
""",
    ),
    (
        "one learning rate is kept: that of the smallest batch that trains",
        "which learning rate lets it",
        """
def choose_batch(measure, accumulations, rates):
    lr = min(rates[:3], key=lambda one: measure(2, one)[0])
    return min(accumulations[1:], key=lambda one: math.prod(measure(one, lr))), lr
""",
    ),
    (
        "every choice is measured",
        "no more may be",
        """
def choose_batch(measure, accumulations, rates):
    choices = [(times, lr) for times in accumulations for lr in rates]
    return min(choices, key=lambda one: math.prod(measure(*one)))
""",
    ),
    ("places in the lists", "is not possible", ((_RETURN, "    return place, at\n"),)),
    (
        "the time, too",
        "a choice is 2 things",
        ((_RETURN, "    return accumulations[place], rates[at], least\n"),),
    ),
]

NOTHING = [
    (
        "nothing is chosen",
        """
def choose_batch(measure, accumulations, rates):
    return None
""",
    ),
]

ACCEPTED = [
    (
        "the noise scale, from the steps of two batches, predicts the others",
        """
def choose_batch(measure, accumulations, rates):
    def tuned(times, *places):
        return min((measure(times, rates[at])[0], at) for at in places)

    (small, at), (large, _) = tuned(4, 2, 1, 3), tuned(16, 2, 3)
    noise = (small - large) / (large / 4 - small / 16)  # in micro-batches of both ranks
    least = small / (1 + noise / 4)
    first, last = measure(4, rates[at])[1], measure(16, rates[at])[1]
    micro = (last - first) / 12

    def expected(times):
        return least * (1 + noise / times) * (first + (times - 4) * micro)

    for times in sorted(accumulations, key=expected):
        places = (1, 0) if times < 4 else (2, 3) if times > 4 else (2,)
        steps, place = tuned(times, *places)
        if steps < math.inf:
            return times, rates[place]
""",
    ),
    (
        "every other batch first, from the largest down; then those beside the best",
        """
def choose_batch(measure, accumulations, rates):
    seen, at = {}, 2

    def tried(place, *at):
        for one in at:
            seen[place, one] = math.prod(measure(accumulations[place], rates[one]))
        return min(at, key=lambda one: seen[place, one])

    for place in (5, 3, 1):
        at = tried(place, at, at - 1)
    place, at = min(seen, key=seen.get)
    for beside in (place - 1, place + 1):
        if 0 <= beside < len(accumulations):
            tried(beside, at)
    place, at = min(seen, key=seen.get)
    return accumulations[place], rates[at]
""",
    ),
    ("a list", ((_RETURN, "    return [accumulations[place], rates[at]]\n"),)),
]
