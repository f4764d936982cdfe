"""Answers to choose_batch: see test_exercises.py."""

_STEPS = "steps = least * (1 + noise / (ranks * micro * accumulation))"
_REDUCE = "reduce = 2 * (ranks - 1) * (latency + nbytes / ranks)"
_BUDGET = "                if ranks * taken <= budget:\n"
_RETURN = "    return min(found)[1:]\n"

MUTANTS = [
    (
        "as many ranks as there are",
        "What does the all-reduce of so many ranks cost",
        (
            (
                _RETURN,
                "    most = max(one[1] for one in found)\n    return min(one for one in found if one[1] == most)[1:]\n",
            ),
        ),
    ),
    (
        "no accumulation",
        "how often per sample does it come",
        ((_RETURN, "    return min(one for one in found if one[3] == 1)[1:]\n"),),
    ),
    ("the budget is forgotten", "more than the budget", ((_BUDGET, "                if True:\n"),)),
    (
        "one rank",
        "How many steps does a larger batch save",
        ((_RETURN, "    return min(one for one in found if one[1] == 1)[1:]\n"),),
    ),
    (
        "the noise is forgotten: the fastest step",
        "How many steps does a larger batch save",
        ((_STEPS, "steps = least"),),
    ),
    (
        "the fewest steps",
        "how often per sample does it come",
        ((_RETURN, "    return min(found, key=lambda one: -math.prod(one[1:]))[1:]\n"),),
    ),
    (
        "the batch nearest the noise scale",
        "the best choice takes",
        (
            (
                _RETURN,
                "    return min(found, key=lambda one: abs(math.prod(one[1:]) - noise))[1:]\n",
            ),
        ),
    ),
    (
        "latency is forgotten",
        "What does the all-reduce of so many ranks cost",
        ((_REDUCE, _REDUCE.replace("latency + ", "")),),
    ),
    (
        "an all-reduce per micro-batch",
        "how often per sample does it come",
        (
            (
                "(accumulation * (launch + micro * sample) + reduce)",
                "accumulation * (launch + micro * sample + reduce)",
            ),
        ),
    ),
    (
        "the fewest rank-seconds",
        "How many steps does a larger batch save",
        ((_RETURN, "    return min(found, key=lambda one: one[0] * one[1])[1:]\n"),),
    ),
    (
        "more than fits",
        "what fits",
        ((_RETURN, "    return min(found)[1], fits + 1, min(found)[3]\n"),),
    ),
    (
        "the time, too",
        "a choice is (ranks, micro, accumulation)",
        ((_RETURN, "    return min(found)\n"),),
    ),
]

NOTHING = [
    (
        "nothing is chosen",
        """
def choose_batch(noise, least, most, fits, budget, launch, sample, latency, nbytes):
    return None
""",
    ),
    (
        "one sample at a time",
        """
def choose_batch(noise, least, most, fits, budget, launch, sample, latency, nbytes):
    return 1, 1, 1
""",
    ),
]

ACCEPTED = [
    ("a list", ((_RETURN, "    return list(min(found)[1:])\n"),)),
    (
        "all choices at once, as tensors",
        """
def choose_batch(noise, least, most, fits, budget, launch, sample, latency, nbytes):
    ranks, micro, times = torch.meshgrid(
        *(torch.arange(1, n + 1, dtype=torch.double) for n in (most, fits, 32)), indexing="ij"
    )
    step = times * (launch + micro * sample) + 2 * (ranks - 1) * (latency + nbytes / ranks)
    taken = least * (1 + noise / (ranks * micro * times)) * step
    taken[ranks * taken > budget] = torch.inf
    place = torch.unravel_index(taken.argmin(), taken.shape)
    return tuple(int(i) + 1 for i in place)
""",
    ),
    (
        "the largest micro-batch where anything is accumulated",
        """
def choose_batch(noise, least, most, fits, budget, launch, sample, latency, nbytes):
    best, choice = float("inf"), None
    tried = [(m, 1) for m in range(1, fits + 1)] + [(fits, a) for a in range(2, 33)]
    for ranks in range(most, 0, -1):
        send = 2 * (ranks - 1) * (latency + nbytes / ranks)
        for micro, a in tried:
            time = least * (1 + noise / (ranks * micro * a)) * (a * (launch + micro * sample) + send)
            if time < best and ranks * time <= budget:
                best, choice = time, (ranks, micro, a)
    return choice
""",
    ),
]
