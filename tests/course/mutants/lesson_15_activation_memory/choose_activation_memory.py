"""Answers to choose_activation_memory: see test_exercises.py."""

_RETURN = "    return min(found)[1:]\n"
_PEAK = "micro * ((blocks - moved + min(moved, 2)) * kept + made)"
_BACK = "step += max(blocks * (2 * forward + again), copies)"

MUTANTS = [
    (
        "recompute every block, as most programs do",
        "what does running twice cost",
        ((_RETURN, '    return min(one for one in found if one[2] == "block")[1:]\n'),),
    ),
    (
        "nothing is recomputed",
        "with all that may be recomputed",
        ((_RETURN, '    return min(one for one in found if one[2] == "keep")[1:]\n'),),
    ),
    (
        "one sample at a time",
        "What does a micro-batch cost besides its samples",
        ((_RETURN, "    return min(one for one in found if one[1] == 1)[1:]\n"),),
    ),
    (
        "the largest micro-batch that fits",
        "what does running twice cost",
        (
            (
                _RETURN,
                "    largest = max(one[1] for one in found)\n    return min(one for one in found if one[1] == largest)[1:]\n",
            ),
        ),
    ),
    (
        "nothing is moved",
        "a few blocks moved",
        ((_RETURN, "    return min(one for one in found if one[3] == 0)[1:]\n"),),
    ),
    (
        "everything is moved",
        "the best choice takes",
        ((_RETURN, "    return min(one for one in found if one[3] == blocks)[1:]\n"),),
    ),
    (
        "what is moved is gone at once",
        "how many moved blocks are still under way",
        ((_PEAK, "micro * ((blocks - moved) * kept + made)"),),
    ),
    (
        "running again takes no memory",
        "What does a block hold while it is run again",
        ((_PEAK, _PEAK.replace(" + made", "")),),
    ),
    (
        "copies cost nothing",
        "the best choice takes",
        (("copies = moved * kept * micro / link", "copies = 0.0"),),
    ),
    (
        "running again costs nothing",
        "the best choice takes",
        ((_BACK, _BACK.replace(" + again", "")),),
    ),
    (
        "a launch costs nothing",
        "What does a micro-batch cost besides its samples",
        (("forward = launch + micro * sample", "forward = micro * sample"),),
    ),
    (
        "the time, too",
        "a choice is (micro, way, moved)",
        ((_RETURN, "    return min(found)\n"),),
    ),
    ("no divisor", "is not possible", ((_RETURN, "    return samples + 1, 'keep', 0\n"),)),
]

NOTHING = [
    (
        "nothing is chosen",
        """
def choose_activation_memory(*device):
    return None
""",
    ),
]

ACCEPTED = [
    (
        "the fewest blocks moved, for each micro-batch and way",
        """
def choose_activation_memory(samples, blocks, inputs, core, rest, free, launch, sample, share, link):
    ways = {"block": (inputs, core + rest), "core": (inputs + rest, core), "keep": (inputs + core + rest, 0.0)}
    best, choice = float("inf"), None
    for micro in range(samples, 0, -1):
        if samples % micro:
            continue
        for way, (kept, made) in ways.items():
            fits = [m for m in range(blocks + 1) if (blocks - m + min(m, 2)) * kept * micro + made * micro <= free]
            if not fits:
                continue
            moved = fits[0]  # more copies never make a step shorter
            f = launch + micro * sample
            again = {"block": f, "core": share * micro * sample, "keep": 0.0}[way]
            out = moved * kept * micro / link
            step = samples / micro * (max(blocks * f, out) + max(blocks * (2 * f + again), out))
            if step < best:
                best, choice = step, (micro, way, moved)
    return choice
""",
    ),
    ("a list", ((_RETURN, "    return list(min(found)[1:])\n"),)),
]
