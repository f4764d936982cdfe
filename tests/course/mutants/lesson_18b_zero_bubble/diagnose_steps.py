"""Answers to diagnose_steps: see test_exercises.py."""

_BARRIER = "if min(start for s, start, _ in mine if s == step) > over * (1 + 1e-6):"
_OVER = "over = max(end for s, _, end in mine if s == step - 1)"
_FIRST = "first = min(start for start, _, s, _ in mine if s == step)"
_ALL = "if rank and all("
_STORED = 'stored += {"F": 1, "W": -1}.get(kind, 0)'

MUTANTS = [
    (
        "a step that begins when all have ended the one before, so there is a barrier",
        "its last rank may be done before a step begins elsewhere",
        (
            (_OVER, "over = max(end for s, _, _, _, _, end in events if s == step - 1)"),
            (_BARRIER, "if min(start for s, start, _ in mine if s == step) >= over * (1 - 1e-9):"),
        ),
    ),
    (
        "barriers are not looked for",
        "Which rank needs nothing from others",
        ((_BARRIER, "if False:"),),
    ),
    (
        "an activation is stored until its I",
        "until which action does it store one",
        ((_STORED, _STORED.replace('"W"', '"I"')),),
    ),
    (
        "a W right after its I is a gradient held back",
        "Rank 0 of ZB-H1 performs each W at once",
        (
            (_ALL, "if all("),
            (
                'at[step, rank - 1, "I", i][0] >= at[step, rank, "W", i][1] * (1 - 1e-9)',
                'at[step, rank, "W", i][0] <= at[step, rank, "I", i][1] * (1 + 1e-9)',
            ),
        ),
    ),
    (
        "the rank that waits for the gradient is named",
        "When could the rank before have begun",
        (('return "gradient held back", rank', 'return "gradient held back", rank - 1'),),
    ),
    (
        "a step ends with its last I",
        "Which gradients of the step before are not in them",
        (
            (
                "if first < max(end for _, end, s, _ in mine if s == step - 1)",
                'if first < max(end for _, end, s, k in mine if s == step - 1 and k == "I")',
            ),
        ),
    ),
    (
        "not before any rank's last W may a step begin",
        "What has each rank to wait for",
        (
            (
                "if first < max(end for _, end, s, _ in mine if s == step - 1)",
                "if first < max(end for s, _, _, _, _, end in events if s == step - 1)",
            ),
        ),
    ),
    (
        "only between the first two steps",
        "are not in them",
        (
            (
                "for step in range(1, steps):\n            first",
                "for step in (1,):\n            first",
            ),
        ),
    ),
    (
        "a word, no rank",
        "A diagnosis is two things",
        (('return "healthy", None', 'return "healthy"'),),
    ),
]

NAMED = "an activation is stored until its I"

NOTHING = [
    (
        "all healthy",
        """
def diagnose_steps(events, room):
    return "healthy", None
""",
    ),
    (
        "always a barrier",
        """
def diagnose_steps(events, room):
    return "barrier", None
""",
    ),
]

ACCEPTED = [
    (
        "by what each rank could have done earlier",
        """
def diagnose_steps(events, room):
    events = sorted(events, key=lambda e: (e[1], e[4], e[5]))
    ranks = sorted({e[1] for e in events})
    lists = [[e for e in events if e[1] == r] for r in ranks]
    for r, mine in enumerate(lists):
        open_now = set()
        done = set()
        for step, _, kind, i, start, end in mine:
            if kind == "F":
                if any(s < step for s, _ in open_now):
                    return ["early update", r]
                open_now.add((step, i))
            elif kind == "W":
                open_now.discard((step, i))
            if len(open_now) > room:
                return ["over room", r]
    ends = {(s, r, k, i): end for s, r, k, i, _, end in events}
    starts = {(s, r, k, i): start for s, r, k, i, start, _ in events}
    for r in ranks[1:]:
        after_i, after_w = [], []
        for s, rank, k, i in starts:
            if rank == r - 1 and k == "I":
                after_i.append(starts[s, rank, k, i] - ends[s, r, "I", i])
                after_w.append(starts[s, rank, k, i] - ends[s, r, "W", i])
        if min(after_w) > -1e-9 * max(ends.values()):
            return ["gradient held back", r]
    first = lists[0]
    for one, two in zip(first, first[1:]):
        if two[0] > one[0] and two[4] - one[5] > 1e-6 * one[5]:
            return ["barrier", None]
    return ["healthy", None]
""",
    ),
    (
        "with torch, rank by rank",
        """
def diagnose_steps(events, room):
    code = {"F": 0, "I": 1, "W": 2}
    table = torch.tensor([(s, r, code[k], i, a, b) for s, r, k, i, a, b in events], dtype=torch.double)
    steps, ranks = int(table[:, 0].max()) + 1, int(table[:, 1].max()) + 1
    near = 1e-9 * float(table[:, 5].max())

    def pick(step=None, rank=None, kind=None):
        keep = torch.ones(len(table), dtype=torch.bool)
        for column, value in enumerate((step, rank, kind)):
            if value is not None:
                keep &= table[:, column] == value
        part = table[keep]
        return part[(part[:, 0] * 1000 + part[:, 3]).argsort()]

    for rank in range(ranks):
        mine = pick(rank=rank)
        mine = mine[mine[:, 4].argsort()]
        change = (mine[:, 2] == 0).long() - (mine[:, 2] == 2).long()
        if int(change.cumsum(0).max()) > room:
            return "over room", rank
    for rank in range(ranks):
        for step in range(1, steps):
            if pick(step, rank)[:, 4].min() < pick(step - 1, rank)[:, 5].max() - near:
                return "early update", rank
    for rank in range(1, ranks):
        if bool((pick(rank=rank - 1, kind=1)[:, 4] >= pick(rank=rank, kind=2)[:, 5] - near).all()):
            return "gradient held back", rank
    late = [float(pick(s, 0)[:, 4].min() - pick(s - 1, 0)[:, 5].max()) for s in range(1, steps)]
    return ("barrier" if max(late) > 1000 * near else "healthy"), None
""",
    ),
]
