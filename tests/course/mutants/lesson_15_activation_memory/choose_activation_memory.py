"""Answers to choose_activation_memory: see test_exercises.py."""

_WAYS = '        for way in ("keep", "core", "block")\n'
_MICROS = "        for micro in (samples, half)\n"
_LEFT = '        if peak <= free or taken >= best[0] or way == "block":\n'
_RETURN = "    return best[1]\n"

MUTANTS = [
    (
        "recompute every block, as most programs do",
        "what does running twice cost",
        (
            (
                _RETURN,
                '    return min((t, (*c, 0)) for c, (p, t) in stays.items() if c[1] == "block" and p <= free)[1]\n',
            ),
        ),
    ),
    (
        "nothing is recomputed",
        "each of the three ways",
        """
def choose_activation_memory(measure, free, samples, blocks):
    every = [(m, "keep", n) for m in (samples, samples // 2) for n in range(blocks + 1)]
    return min((measure(*c)[1], c) for c in every if measure(*c)[0] <= free)[1]
""",
    ),
    (
        "half of the samples at a time",
        "What does a smaller micro-batch cost",
        ((_RETURN, "    return half, *best[1][1:]\n"),),
    ),
    (
        "nothing is moved",
        "How many blocks can be moved",
        ((_LEFT, "        if True:\n"),),
    ),
    (
        "everything is moved",
        "Does anything have to be paid here",
        ((_RETURN, "    return *best[1][:2], blocks\n"),),
    ),
    (
        "the lesson's advice: checkpoint first, then offload the checkpoints",
        "what does running twice cost",
        """
def choose_activation_memory(measure, free, samples, blocks):
    for micro in (samples, samples // 2):
        for moved in range(blocks + 1):
            if measure(micro, "block", moved)[0] <= free:
                return micro, "block", moved
""",
    ),
    (
        "the fastest, whether it fits or not",
        "which does not fit",
        """
def choose_activation_memory(measure, free, samples, blocks):
    return samples, "keep", 0
""",
    ),
    (
        "the least memory",
        "Does anything have to be paid here",
        """
def choose_activation_memory(measure, free, samples, blocks):
    return samples // 2, "keep", blocks
""",
    ),
    (
        "every choice is measured",
        "no more may be",
        """
def choose_activation_memory(measure, free, samples, blocks):
    every = [(m, w, n) for m in (2, 4) for w in ("keep", "core", "block") for n in range(blocks + 1)]
    return min((measure(*c)[1], c) for c in every if measure(*c)[0] <= free)[1]
""",
    ),
    (
        "one block more is moved, to be sure",
        "How many blocks can be moved",
        (
            (
                _RETURN,
                "    micro, way, moved = best[1]\n    return micro, way, min(blocks, moved + 1) if moved else 0\n",
            ),
        ),
    ),
    (
        "the time, too",
        "a choice is 3 things",
        ((_RETURN, "    return *best[1], best[0]\n"),),
    ),
    ("no divisor", "is not possible", ((_RETURN, "    return 3, 'keep', 0\n"),)),
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
    ("a list", ((_RETURN, "    return list(best[1])\n"),)),
    (
        "moved blocks first, from the fewest samples",
        """
def choose_activation_memory(measure, free, samples, blocks):
    seen = {}
    for way in ("keep", "core", "block"):
        for micro in (samples, samples // 2):
            seen[micro, way, 0] = measure(micro, way, 0)
    order = sorted((t, c) for c, (p, t) in seen.items() if c[1] != "block" and p > free)
    for _, (micro, way, _) in reversed(order):
        for moved in (2, 1) if len(seen) < 11 else (2,):
            done = min((t for p, t in seen.values() if p <= free), default=float("inf"))
            if len(seen) < 12 and seen[micro, way, 0][1] < done:
                seen[micro, way, moved] = measure(micro, way, moved)
                if seen[micro, way, moved][0] > free:
                    break
    return min((t, c) for c, (p, t) in seen.items() if p <= free)[1]
""",
    ),
]
