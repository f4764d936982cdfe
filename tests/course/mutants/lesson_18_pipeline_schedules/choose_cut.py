"""Answers to choose_cut: see test_exercises.py."""

_MESSAGE = "came += nbytes[edge] / bandwidth"
_TAKEN = "    return min(found)[1:]\n"
_FITS = "        if kept <= room:\n"
_ROOM = "            if peak <= 1.2 * room:"
_MEASURED = """    found = []
    for _, *choice in sorted(likely)[:4]:
        seconds, kept = measure(*choice)
        if kept <= room:
            found.append((seconds, *choice))
    return min(found)[1:]
"""

MUTANTS = [
    (
        "the lesson's own: my_balance by the layers' forwards, and 1F1B",
        "Which order has the smaller bubble here",
        """
def choose_cut(measure, forward, nbytes, bandwidth, slow, m, room):
    n = len(forward)
    cut = min(range(1, n), key=lambda k: max(sum(forward[:k]), sum(forward[k:])))
    return "1F1B", (cut, n - cut)
""",
    ),
    (
        "no message takes time",
        "How many bytes cross at each cut",
        ((_MESSAGE, "pass"),),
    ),
    (
        "both ranks are equally fast",
        "which gives the slow rank so little",
        (
            ("seconds = sum(forward[a:b]) * slow[rank]", "seconds = sum(forward[a:b])"),
            ("- (a == 0) * forward[0]) * slow[rank]", "- (a == 0) * forward[0])"),
        ),
    ),
    (
        "whatever it stores",
        "a rank keeps",
        ((_FITS, "        if True:\n"), (_ROOM, "            if True:")),
    ),
    (
        "interleaved for its bubble, with equally many layers",
        "the best choice takes",
        """
def choose_cut(measure, forward, nbytes, bandwidth, slow, m, room):
    cuts = [(2, 2, 2, 1), (2, 2, 1, 2), (2, 1, 2, 2), (1, 2, 2, 2)]
    return "interleaved", min(cuts, key=lambda cut: measure("interleaved", cut))
""",
    ),
    (
        "one stage per rank only",
        "Which order has the smaller bubble here",
        (('        "interleaved": schedules.interleaved_1f1b(2, m, 2),\n', ""),),
    ),
    (
        "all are measured",
        "no more may be",
        (("sorted(likely)[:4]", "sorted(likely)"),),
    ),
    (
        "the places of the cuts in place of the stages' layers",
        "is not possible",
        ((_TAKEN, "    _, name, cut = min(found)\n    return name, tuple(accumulate(cut))\n"),),
    ),
]

NOTHING = [
    (
        "GPipe, three layers and four",
        """
def choose_cut(measure, forward, nbytes, bandwidth, slow, m, room):
    return "GPipe", (3, 4)
""",
    ),
]

ACCEPTED = [
    (
        "by the course's simulator, with one time for all messages",
        """
def choose_cut(measure, forward, nbytes, bandwidth, slow, m, room):
    likely = []
    for name, make in (
        ("GPipe", schedules.gpipe),
        ("1F1B", schedules.one_f_one_b),
        ("interleaved", lambda p, m: schedules.interleaved_1f1b(p, m, 2)),
    ):
        schedule = make(2, m)
        for ends in combinations(range(1, len(forward)), schedule.num_stages - 1):
            bounds = list(pairwise((0, *ends, len(forward))))
            work = [
                sum(forward[a:b]) * slow[rank]
                for (a, b), rank in zip(bounds, schedule.rank_of, strict=True)
            ]
            first = [work[0] - forward[0] * slow[0], *work[1:]]
            message = sum(nbytes[end] for end in ends) / len(ends) / bandwidth
            found = simulate(schedule, Times(work, first, work, transfer=message))
            under_way = [[held(actions, stage) for stage in range(len(bounds))] for actions in schedule.ranks]
            kept = max(
                sum(most * sum(nbytes[a : b + 1]) for most, (a, b) in zip(one, bounds, strict=True))
                for one in under_way
            )
            if kept <= room:  # of each stage at its own worst moment: no less than what is there at once
                likely.append((found.makespan, name, tuple(b - a for a, b in bounds)))
    _, name, cut = min((measure(name, cut), name, cut) for _, name, cut in sorted(likely)[:4])
    return [name, cut]


def held(actions, stage):
    # Micro-batches of a stage under way at once.
    steps = [1 if kind == "F" else -1 for at, kind, _ in actions if at == stage]
    return max(accumulate(steps), default=0)
""",
    ),
    (
        "by its own prediction alone",
        ((_ROOM, "            if peak <= room:"), (_MEASURED, "    return min(likely)[1:]\n")),
    ),
]  # fmt: skip
