"""Answers to diagnose_loader: see test_exercises.py."""

_EVERYTHING = '    if len(samples[0][0]) >= total:\n        return "everything", None\n'
_OWN = "    if sum(readers.values()) - len(readers) >= size:\n"
_WHO = 'return "own order", shared.index(max(shared))'
_ANGLES = '        return "same angles", None\n'
_EPOCHS = "    for epoch in range(1, len(samples)):\n"

MUTANTS = [
    ("a part may be everything", "How many samples does one rank read", ((_EVERYTHING, ""),)),
    (
        "no sample may come twice",
        "may be read twice, or left out",
        ((_OWN, "    if max(readers.values()) > 1:\n"),),
    ),
    (
        "every sample must come",
        "may be read twice, or left out",
        ((_OWN, "    if len(readers) < total:\n"),),
    ),
    (
        "the first rank that shares a sample",
        "which rank is one of the two nearly every time",
        ((_WHO, 'return "own order", [n > 0 for n in shared].index(True)'),),
    ),
    (
        "the rank after it",
        "which rank is one of the two nearly every time",
        ((_WHO, 'return "own order", (shared.index(max(shared)) + 1) % size'),),
    ),
    (
        "only the first two epochs",
        "from which epoch on",
        ((_EPOCHS, "    for epoch in range(1, 2):\n"),),
    ),
    (
        "the last epoch with an old order",
        "from which epoch on",
        ((_EPOCHS, "    for epoch in reversed(range(1, len(samples))):\n"),),
    ),
    (
        "angles are not looked at",
        "What do all ranks do to their first one",
        ((_ANGLES, "        pass\n"),),
    ),
    (
        "two equal angles are a mistake",
        "may be read twice, or left out",
        (("if all(a == b for one in angles", "if any(a == b for one in angles[1:]"),),
    ),
    (
        "a word, no place",
        "A diagnosis is two things",
        (('    return "healthy", None\n', '    return "healthy"\n'),),
    ),
]

NOTHING = [
    (
        "all is well",
        """
def diagnose_loader(total, reads):
    return "healthy", None
""",
    ),
]

ACCEPTED = [
    (
        "sets, and overlaps of two ranks",
        """
def diagnose_loader(total, reads):
    size = len(reads[0])
    parts = [[{s for s, _ in part} for part in epoch] for epoch in reads]
    if any(len(part) > total / size + size for part in parts[0]):
        return "everything", None
    overlaps = [sum(len(mine & other) for other in parts[1]) - len(mine) for mine in parts[1]]
    if sum(overlaps) >= 2 * size:
        return "own order", overlaps.index(max(overlaps))
    for epoch in reads:
        columns = list(zip(*[[angle for _, angle in part] for part in epoch]))
        if all(len(set(column)) == 1 for column in columns):
            return "same angles", None
    firsts = [[s for s, _ in epoch[0]] for epoch in reads]
    old = [e for e in range(1, len(firsts)) if firsts[e] in firsts[:e]]
    return ("same order", old[0]) if old else ("healthy", None)
""",
    ),
    (
        "in arrays of numbers, as lists",
        """
def diagnose_loader(total, reads):
    least = min(len(part) for part in reads[0])
    table = torch.tensor([[part[:least] for part in epoch] for epoch in reads])
    samples, angles = table[..., 0], table[..., 1]
    if least == total:
        return ["everything", None]
    if (angles == angles[:, :1]).all():
        return ["same angles", None]
    counts = torch.stack([torch.bincount(part, minlength=total) for part in samples[0]])
    twice = counts.sum(0) > 1
    if twice.sum() >= len(reads[0]):
        return ["own order", int((counts * twice).sum(1).argmax())]
    for epoch in range(1, len(reads)):
        if (samples[epoch] == samples[epoch - 1]).all():
            return ["same order", epoch]
    return ["healthy", None]
""",
    ),
]
