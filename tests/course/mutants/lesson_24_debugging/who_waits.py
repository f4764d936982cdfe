"""Answers to who_waits: see test_exercises.py."""

_PLACE = 'return tuple(call["group"]), call["seq"]'
_KINDS = 'kinds = [(one["name"], one["size"]) for one in met.values()]'
_ODD = "odd = [rank for rank, kind in zip(met, kinds, strict=True) if kind != usual]"
_AHEAD = "            rank = next((other for other in ahead if other not in waits), ahead[0])\n"
_OR_ITSELF = (_AHEAD, _AHEAD.replace("ahead[0]", "ahead[0] if ahead else rank"))
_CIRCLE = 'return "circle", sorted(path[path.index(rank) :])'
_DIFFERS = '            return "differs", sorted(odd)\n'

_BY_SETS = """
from collections import Counter


def who_waits(records):
    last = {r: one["calls"][-1] for r, one in records.items() if one["calls"]}
    last = {r: call for r, call in last.items() if not call["done"]}
    meetings = {}
    for rank, call in last.items():
        meetings.setdefault((*call["group"], "#", call["seq"]), []).append(rank)
    for there in meetings.values():
        count = Counter((last[r]["name"], last[r]["size"]) for r in there)
        if len(count) > 1:
            (usual, _), *_ = count.most_common()
            return ["differs", sorted(r for r in there if (last[r]["name"], last[r]["size"]) != usual)]
    edges = {}
    for rank, call in last.items():
        there = meetings[(*call["group"], "#", call["seq"])]
        edges[rank] = {r for r in call["group"] if r not in there}
    free = {other for others in edges.values() for other in others if other not in last}
    if free:
        return ["absent", sorted(free)]
    # Of those that can be reached from themselves: in the circle. The shortest way round is it.
    def around(start):
        ways = [[start]]
        while ways:
            way = ways.pop(0)
            for other in edges[way[-1]]:
                if other == start:
                    return way
                if other not in way:
                    ways.append([*way, other])
    found = [way for way in map(around, edges) if way]
    return ["circle", sorted(min(found, key=len))] if found else ["healthy", []]
"""

MUTANTS = [
    (
        "all are in one group, as in the lesson",
        "Follow the waits until",
        ((_PLACE, "return ()"), _OR_ITSELF),
    ),
    ("names alone", "another name or size", ((_KINDS, 'kinds = [one["name"] for one in met.values()]'), _OR_ITSELF)),
    ("the many are blamed", "another name or size", ((_ODD, _ODD.replace("!=", "==")),)),
    (
        "whoever is missing first is blamed",
        "Follow the waits until",
        (
            ("            # Who waits for nobody is nearer to the reason.\n", ""),
            (_AHEAD, '            return "absent", ahead[:1]\n'),
        ),
    ),
    (
        "all on the way are in the circle",
        "which were only on the way to it",
        ((_CIRCLE, 'return "circle", sorted(waits)'),),
    ),
    ("differences are not looked for", "Two calls meet if they have the same group", ((_DIFFERS, "            pass\n"), _OR_ITSELF)),
    ("a word alone", "A diagnosis is two things", (('return "healthy", []', 'return "healthy"'),)),
]  # fmt: skip

NOTHING = [
    ("nobody waits", '\ndef who_waits(records):\n    return "healthy", []\n'),
    ("always rank 0", '\ndef who_waits(records):\n    return "absent", [0]\n'),
]

ACCEPTED = [
    ("by who is in which meeting, and the shortest way round", _BY_SETS),
    (
        "waits looked through from the other end",
        (
            (
                "    for rank in waits:\n        path",
                "    for rank in reversed(waits):\n        path",
            ),
            ("sorted(odd)", "sorted(odd, reverse=False)"),
        ),
    ),
]
