"""Answers to half_the_memory: see test_exercises.py."""

# The lesson's own order, with one stage per rank.
_LESSON = """
def half_the_memory(p, m):
    room, inf = p // 2 + 1, float("inf")
    free, end, lists = [0.0] * p, {}, [[] for _ in range(p)]
    done = [dict.fromkeys("IFW", 0) for _ in range(p)]

    def start(rank, kind):
        i, own, source = done[rank][kind], done[rank], rank - 1 if kind == "F" else rank + 1
        possible = {"F": i < min(m, own["W"] + room), "I": i < own["F"], "W": i < own["I"]}[kind]
        ready = end.get((source, kind, i), inf) if kind != "W" and 0 <= source < p else 0.0
        return max(free[rank], ready) if possible else inf

    for _ in range(3 * p * m):
        when, n, rank = min((start(r, k), n, r) for r in range(p) for n, k in enumerate("IFW"))
        kind = "IFW"[n]
        lists[rank].append((rank, kind, done[rank][kind]))
        free[rank] = end[rank, kind, done[rank][kind]] = when + 1
        done[rank][kind] += 1
    return lists
"""

# One micro-batch at a time, down and up and back.
_ONE_BY_ONE = """
def half_the_memory(p, m):
    return [
        [(s, kind, i) for i in range(m) for kind in "FB" for s in sorted((r, 2 * p - 1 - r), reverse=kind == "B")]
        for r in range(p)
    ]
"""

# GPipe, on a V.
_GPIPE = """
def half_the_memory(p, m):
    return [
        [(s, "F", i) for s in (r, 2 * p - 1 - r) for i in range(m)]
        + [(s, "B", i) for s in (2 * p - 1 - r, r) for i in range(m)]
        for r in range(p)
    ]
"""

_KEPT = "held < (room - 1 if s < p else room)"

MUTANTS = [
    (
        "right for four sizes, and empty lists elsewhere",
        "the validator refuses it",
        (
            (
                "    return lists\n",
                "    return lists if (p, m) in {(4, 8), (5, 13), (6, 24), (8, 16)} else [[] for _ in range(p)]\n",
            ),
        ),
    ),
    ("the lesson's order, one stage per rank", "the validator refuses it", _LESSON),
    ("one micro-batch at a time", "what could a rank do in its gaps", _ONE_BY_ONE),
    ("all forwards first", "there is room for", _GPIPE),
    (
        "room for as much as ZB-V",
        "What has to happen on a rank before it takes in one more",
        (("room = range(2 * p), p + 2", "room = range(2 * p), 2 * p"),),
    ),
    ("no limit", "there is room for", ((_KEPT, "held < 2 * m"),)),
    ("nothing kept for the way up", "the validator refuses it", ((_KEPT, "held < room"),)),
    (
        "too little room used",
        "what could a rank do in its gaps",
        (("room = range(2 * p), p + 2", "room = range(2 * p), 2 + p // 4"),),
    ),
    (
        "the last weight gradients are left out",
        "never does",
        (("for _ in range(3 * m * 2 * p)", "for _ in range(3 * m * 2 * p - 3)"),),
    ),
    (
        "a loop instead of a V",
        "and stage",
        (
            (
                "rank_of = [min(s, 2 * p - 1 - s) for s in stages]",
                "rank_of = [s % p for s in stages]",
            ),
        ),
    ),
    (
        "weight gradients before forwards",
        "what could a rank do in its gaps",
        (('order = {"I": 0, "F": 1, "W": 2}', 'order = {"I": 0, "W": 1, "F": 2}'),),
    ),
    (
        "whole backwards",
        "what could a rank do in its gaps",
        (
            (
                "    return lists\n",
                """    merged = []
    for actions in lists:
        merged.append([])
        for s, kind, i in actions:
            if kind == "W" and merged[-1][-1] == (s, "I", i):
                merged[-1][-1] = s, "B", i
            else:
                merged[-1].append((s, kind, i))
    return merged
""",
            ),
        ),
    ),
    (
        "ready-made",
        "dtcourse.pipeline_parallel.zero_bubble",
        """
from dtcourse.pipeline_parallel import zero_bubble


def half_the_memory(p, m):
    return [[tuple(one) for one in actions] for actions in zero_bubble.zb_v(p, m)]
""",
    ),
]

# The same in rounds: what could run now runs, rank after rank, and a clock that ticks in halves; no earliest is looked for.
_TICKING = """
def half_the_memory(p, m):
    from collections import Counter
    lists, done, ready, busy, now = [[] for _ in range(p)], Counter(), {}, [0] * p, 0
    while sum(map(len, lists)) < 6 * p * m:
        for r in range(p):
            if busy[r] > now:
                continue
            held = sum(done[s, "F"] - done[s, "W"] for s in (r, 2 * p - 1 - r))
            for kind, s in (("I", 2 * p - 1 - r), ("I", r), ("F", 2 * p - 1 - r), ("F", r), ("W", 2 * p - 1 - r), ("W", r)):
                i = done[s, kind]
                source = {"F": (s - 1, "F", i), "I": (s + 1, "I", i)}.get(kind)
                if source and 0 <= source[0] < 2 * p and ready.get(source, now + 1) > now:
                    continue
                if kind == "F" and (i == m or held >= p + 2 - (s < p)):
                    continue
                if kind != "F" and i >= done[s, "F" if kind == "I" else "I"]:
                    continue
                lists[r].append((s, kind, i))
                done[s, kind] += 1
                busy[r] = ready[s, kind, i] = now + 1
                break
        now += 1
    return lists
"""

ACCEPTED = [
    ("round by round on a clock", _TICKING),
    (
        "forwards before backward-inputs",
        (('order = {"I": 0, "F": 1, "W": 2}', 'order = {"F": 0, "I": 1, "W": 2}'),),
    ),
    (
        "two places kept for the way up",
        ((_KEPT, "held < (room - 2 if s < p else room)"),),
    ),
    (
        "a clock of other units",
        (("when + 0.5", "when + 1"),),
    ),
]

NOTHING = [
    ("no actions", "\ndef half_the_memory(p, m):\n    return [[] for _ in range(p)]\n"),
    ("no lists", "\ndef half_the_memory(p, m):\n    return []\n"),
]
