"""Answers to diagnose_loader: see test_exercises.py."""

_EVERYTHING = "    if sum(times[whole].values()) > 1.5 * total:\n"
_OWN = "    if off[whole] > 8:\n"
_WHO = 'return "seed", max(shared, key=shared.get)'
_ANGLES = '                return "worker seed", None\n'
_SKIP = "        if number > 8:\n"
_EPOCHS = "    for epoch in sorted(parts)[1:]:\n"
_FIRST = "(min(parts[e].items())[1] for e in (epoch - 1, epoch))"

MUTANTS = [
    (
        "overlaps are not looked at",
        "Whose part of the data overlaps with everybody's",
        ((_OWN, "    if False:\n"),),
    ),
    (
        "a rank may read everything",
        "How much of the data does one rank read",
        ((_EVERYTHING, "    if False:\n"),),
    ),
    (
        "no sample may come twice or be missing",
        "only because the number of ranks does not divide them",
        ((_OWN, "    if off[whole]:\n"),),
    ),
    (
        "a restarted epoch may not have padding",
        "only because the number of ranks does not divide them",
        ((_SKIP, "        if number > 0:\n"),),
    ),
    (
        "the rank that shares least",
        "Whose part of the data overlaps with everybody's",
        ((_WHO, 'return "seed", min(shared, key=shared.get)'),),
    ),
    (
        "the last epoch with an old order",
        "in which epoch does one see it first",
        ((_EPOCHS, "    for epoch in sorted(parts)[:0:-1]:\n"),),
    ),
    (
        "epochs are compared rank by rank, whatever their number",
        "What does the sampler know of the epoch",
        (
            (
                "[ranks[r][0][k] for k in range(5) for r in sorted(ranks)]",
                "[s for r in sorted(ranks) for s in ranks[r][0]]",
            ),
        ),
    ),
    (
        "angles are not looked at",
        "What do all ranks do to their first one",
        ((_ANGLES, "                pass\n"),),
    ),
    (
        "samples that are read twice, not those that are left out",
        "had all ranks together used before the restart",
        (("sum(n - 1 for n in found.values()) + total - len(found)", "sum(n - 1 for n in found.values())"),),
    ),
    (
        "a restart is a mistake",
        "what does a restart change",
        ((_SKIP, "        if len(parts[epoch]) > 1:\n"),),
    ),
    (
        "a word, no place",
        "A diagnosis is two things",
        (('    return "healthy", None\n', '    return "healthy"\n'),),
    ),
]  # fmt: skip

NOTHING = [
    (
        "all is well",
        """
def diagnose_loader(total, rows):
    return "healthy", None
""",
    ),
]

ACCEPTED = [
    (
        "sets, each question by itself, in another order",
        """
def diagnose_loader(total, rows):
    restarted = {e for s, e, *_ in rows if s == 1} & {e for s, e, *_ in rows if s == 0}
    epochs = sorted({row[1] for row in rows})
    whole = [e for e in epochs if e not in restarted]

    def of(epoch, start=None):
        found = {}
        for s, e, rank, sample, angle in rows:
            if e == epoch and start in (None, s):
                found.setdefault(rank, []).append((sample, angle))
        return found

    for e in epochs:
        for start in (0, 1):
            columns = list(zip(*[[angle for _, angle in part] for part in of(e, start).values()]))
            if columns and all(len(set(column)) == 1 for column in columns):
                return "worker seed", None
    parts = {r: {s for s, _ in part} for r, part in of(whole[0]).items()}
    if any(len(part) > total / len(parts) + 10 for part in parts.values()):
        return "no sampler", None
    overlap = {r: sum(len(mine & other) for other in parts.values()) - len(mine) for r, mine in parts.items()}
    if sum(overlap.values()) > 2 * 6:
        return "seed", max(overlap, key=overlap.get)
    for e in restarted:
        read = [sample for _, epoch, _, sample, _ in rows if epoch == e]
        if len(read) - len(set(read)) > 6 or total - len(set(read)) > 6:
            return "skip", e
    first = [of(e, min(s for s, f, *_ in rows if f == e)) for e in epochs]
    # Places 0 to 7 of the order: the ranks' first samples, then their second ones.
    heads = [[s for k in zip(*(part[r] for r in sorted(part))) for s, _ in k][:8] for part in first]
    for e in epochs[1:]:
        if heads[e] == heads[e - 1]:
            return "set_epoch", e
    return "healthy", None
""",
    ),
    (
        "in lists, thresholds by the number of ranks",
        (
            ('    return "healthy", None\n', '    return ["healthy", None]\n'),
            ("    if off[whole] > 8:\n", "    if off[whole] > max(row[2] for row in rows):\n"),
            ("        if number > 8:\n", "        if number > max(row[2] for row in rows):\n"),
        ),
    ),
]
