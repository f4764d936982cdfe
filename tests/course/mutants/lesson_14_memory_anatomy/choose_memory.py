"""Answers to choose_memory: see test_exercises.py."""

_CHOICES = "for m in micros for r in range(layers + 1) for s in (False, True)]"
_FITS = "        if expected(*choice)[1] <= capacity and measure(*choice)[0] <= capacity:\n"
_RETURN = "            return choice\n"

MUTANTS = [
    (
        "never sharded",
        "does sharding cost time here, or save it",
        ((_CHOICES, _CHOICES.replace("(False, True)", "(False,)")),),
    ),
    (
        "always sharded",
        "does sharding cost time here, or save it",
        ((_CHOICES, _CHOICES.replace("(False, True)", "(True,)")),),
    ),
    (
        "never recomputed",
        "what does one more recomputed layer",
        ((_CHOICES, _CHOICES.replace("range(layers + 1)", "(0,)")),),
    ),
    (
        "all or none recomputed",
        "Must all of them be",
        ((_CHOICES, _CHOICES.replace("range(layers + 1)", "(0, layers)")),),
    ),
    (
        "one sample at a time",
        "What has to be given up here at all",
        ((_CHOICES, _CHOICES.replace("for m in micros", "for m in (1,)")),),
    ),
    (
        "the lesson's way out: half the micro-batch until it fits",
        "the best choice takes",
        """
def choose_memory(measure, capacity, samples, layers):
    micro = samples
    while micro > 1 and measure(micro, 0, False)[0] > capacity:
        micro //= 2
    return micro, 0, False
""",
    ),
    (
        "the fastest, whether it fits or not",
        "which does not fit",
        ((_FITS, "        if True:\n"),),
    ),
    (
        "every choice is measured",
        "no more may be",
        """
def choose_memory(measure, capacity, samples, layers):
    choices = [(m, r, s) for m in (1, 2, 4) for r in range(layers + 1) for s in (False, True)]
    return min((measure(*c)[1], c) for c in choices if measure(*c)[0] <= capacity)[1]
""",
    ),
    (
        "the least memory",
        "What has to be given up here at all",
        (("key=lambda one: expected(*one)", "key=lambda one: expected(*one)[1]"),),
    ),
    (
        "the largest micro-batch that fits somehow",
        "What does a smaller micro-batch cost here",
        (("key=lambda one: expected(*one)", "key=lambda one: (-one[0], expected(*one))"),),
    ),
    (
        "three samples at a time",
        "is not possible",
        ((_RETURN, "            return 3, 0, True\n"),),
    ),
    (
        "the time, too",
        "a choice is 3 things",
        ((_RETURN, "            return *choice, measure(*choice)[1]\n"),),
    ),
    (
        "sharded is a number",
        "is not possible",
        ((_RETURN, "            return *choice[:2], int(choice[2])\n"),),
    ),
]

NOTHING = [
    (
        "nothing is chosen",
        """
def choose_memory(measure, capacity, samples, layers):
    return None
""",
    ),
]

ACCEPTED = [
    (
        "least squares",
        """
def choose_memory(measure, capacity, samples, layers):
    micros = [n for n in range(1, samples + 1) if samples % n == 0]
    tried = [(m, 0, False) for m in micros] + [(samples, 2, False), (samples, 0, True)]
    found = torch.tensor([measure(*one) for one in tried], dtype=torch.double)

    def row(m, r, s):
        return [1.0, m, 1.0 / m, m * r, r, float(s)]

    rows = torch.tensor([row(*one) for one in tried], dtype=torch.double)
    nbytes = torch.linalg.lstsq(rows[:, [0, 1, 3, 5]], found[:, 0]).solution
    seconds = torch.linalg.lstsq(rows[:, [0, 2, 4, 5]], found[:, 1]).solution
    every = [(m, r, s) for m in micros for r in range(layers + 1) for s in (True, False)]
    rows = torch.tensor([row(*one) for one in every], dtype=torch.double)
    room, time = rows[:, [0, 1, 3, 5]] @ nbytes, rows[:, [0, 2, 4, 5]] @ seconds
    for place in time.argsort().tolist():
        if room[place] <= 1.05 * capacity and measure(*every[place])[0] <= capacity:
            return every[place]
""",
    ),
    ("a list", ((_RETURN, "            return list(choice)\n"),)),
]
