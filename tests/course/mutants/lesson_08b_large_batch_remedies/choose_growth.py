"""Answers to choose_growth: see test_exercises.py."""

_TIME = "        return measure(steps[place], steps[late])[1]\n"
_RETURN = "    return steps[first], steps[second]\n"

MUTANTS = [
    (
        "the fewest steps",
        "what does it lack in the end",
        ((_TIME, _TIME.replace("[1]", "[0]")),),
    ),
    (
        "the large batch at once",
        "what does it lack in the end",
        """
def choose_growth(measure, steps):
    return 0, 0
""",
    ),
    (
        "the small batch to the end",
        "what does it lack in the end",
        """
def choose_growth(measure, steps):
    return steps[-1], steps[-1]
""",
    ),
    (
        "grows once, from the smallest to the largest",
        "what does it lack in the end",
        """
def choose_growth(measure, steps):
    return min(((one, one) for one in steps), key=lambda choice: measure(*choice)[1])
""",
    ),
    (
        "the lesson's schedule: at half and at three quarters of the run",
        "what does it lack in the end",
        """
def choose_growth(measure, steps):
    whole, _ = measure(0, 0)
    near = lambda share: min(steps, key=lambda one: abs(one - share * whole))
    return near(1 / 2), near(3 / 4)
""",
    ),
    (
        "what is best where messages are cheap",
        "never worth its message",
        """
def choose_growth(measure, steps):
    return steps[4], steps[5]
""",
    ),
    (
        "late or at once, as messages are cheap or not",
        "never worth its message",
        """
def choose_growth(measure, steps):
    late, at_once = (steps[4], steps[5]), (0, 0)
    return late if measure(*late)[1] < 0.7 * measure(*at_once)[1] else (40, 160)
""",
    ),
    (
        "a batch that grows late is never given up",
        "Which choice takes the fewest steps",
        """
def choose_growth(measure, steps):
    tried = [(240, 320), (160, 240), (0, 160), (0, 240)]
    return min(tried, key=lambda choice: measure(*choice)[1])
""",
    ),
    (
        "every choice is measured",
        "no more may be",
        """
def choose_growth(measure, steps):
    choices = [(i, j) for i in steps for j in steps if i <= j]
    return min(choices, key=lambda choice: measure(*choice)[1])
""",
    ),
    ("places in the list", "is not possible", ((_RETURN, "    return first, second\n"),)),
    (
        "the time, too",
        "a choice is 2 things",
        ((_RETURN, "    return steps[first], steps[second], least\n"),),
    ),
]

NOTHING = [
    (
        "nothing is chosen",
        """
def choose_growth(measure, steps):
    return None
""",
    ),
]

ACCEPTED = [
    (
        "four choices far apart, then those beside the best",
        """
def choose_growth(measure, steps):
    seen = {}

    def tried(i, j):
        if 0 <= i <= j < len(steps) and len(seen) < 8:
            seen[i, j] = measure(steps[i], steps[j])[1]

    for i, j in ((0, 0), (0, 3), (3, 5), (5, 5)):
        tried(i, j)
    i, j = min(seen, key=seen.get)
    for beside in ((i - 1, j), (i, j - 1), (i, j + 1), (i + 1, j)):
        tried(*beside)
    i, j = min(seen, key=seen.get)
    return steps[i], steps[j]
""",
    ),
    (
        "what a step of each batch takes, from three runs, tells where to look",
        """
def choose_growth(measure, steps):
    (count, large), (count_late, late) = measure(0, 0), measure(steps[-1], steps[-1])
    times = (large / count) / (late / count_late)  # a large batch's step, in small ones
    if times > 8:
        where = [(240, 320), (160, 240), (160, 320)]
    elif times > 1.5:
        where = [(0, 160), (0, 80), (0, 240), (40, 160)]
    else:
        where = [(0, 0), (0, 40)]
    return min(where, key=lambda choice: measure(*choice)[1])
""",
    ),
    ("a list", ((_RETURN, "    return [steps[first], steps[second]]\n"),)),
]
