"""Records of ranks that hang, drawn at random: collectives on several groups are played until nobody goes on.

A program is a list of calls for each rank. A call is over when all ranks of its group are in it, in the same one. Kept
of each rank are its last calls, as a flight recorder keeps them.
"""

from __future__ import annotations

import random
from typing import Any

Group = tuple[int, ...]
Call = tuple[str, Group, int]  # its name, its group, its size
Records = dict[int, dict[str, Any]]

NAMES = ("all_reduce", "all_gather", "broadcast", "reduce_scatter")
KEPT = 5


def _groups(ranks: int) -> list[Group]:
    """The group of all ranks, and some smaller ones that overlap."""
    pairs = [tuple(sorted(random.sample(range(ranks), 2))) for _ in range(3)]
    threes = [tuple(sorted(random.sample(range(ranks), 3))) for _ in range(2)]
    return list(dict.fromkeys([tuple(range(ranks)), *pairs, *threes]))


def _program(ranks: int, length: int) -> list[list[Call]]:
    """A right one: of each rank the calls of the groups in which it is, in one order that all share."""
    calls = [
        (random.choice(NAMES), random.choice(_groups(ranks)), random.choice([8, 64]))
        for _ in range(length)
    ]
    calls[:ranks] = [("all_reduce", tuple(range(ranks)), 8) for _ in range(ranks)]
    random.shuffle(calls)
    return [[call for call in calls if rank in call[1]] for rank in range(ranks)]


def play(programs: list[list[Call]], left: dict[int, bool]) -> Records:
    """Until nobody goes on. left: {rank that stops at its program's end: whether it has left}."""
    place = [0] * len(programs)
    seqs: list[dict[Group, int]] = [{} for _ in programs]
    calls: list[list[dict[str, Any]]] = [[] for _ in programs]
    going = True
    while going:
        going = False
        for rank, program in enumerate(programs):
            if len(calls[rank]) == place[rank] and place[rank] < len(program):
                name, group, size = program[place[rank]]
                seqs[rank][group] = seqs[rank].get(group, 0) + 1
                called = {"name": name, "group": list(group), "seq": seqs[rank][group]}
                calls[rank].append(called | {"size": size, "done": False})
                going = True
        for rank, program in enumerate(programs):
            if len(calls[rank]) == place[rank]:
                continue
            group, mine = program[place[rank]][1], calls[rank][-1]
            there = [calls[r][-1] for r in group if len(calls[r]) > place[r]]
            if len(there) == len(group) and all(one == mine for one in there):
                for r in group:
                    calls[r][-1] = mine | {"done": True}
                    place[r] += 1
                going = True
    return {
        rank: {"left": left.get(rank, False), "calls": calls[rank][-KEPT:]}
        for rank in range(len(programs))
    }


def _differs(ranks: int) -> tuple[Records, tuple[str, tuple[int, ...]]]:
    """One rank calls something else, where three or more meet."""
    programs = _program(ranks, 12)
    rank = random.randrange(ranks)
    where = [i for i, call in enumerate(programs[rank]) if len(call[1]) > 2 and i > 1]
    at = random.choice(where)
    name, group, size = programs[rank][at]
    other = random.choice([n for n in NAMES if n != name])
    changed = (other, group, size) if random.random() < 0.5 else (name, group, size * 2 + 1)
    programs[rank] = [*programs[rank][:at], changed, *programs[rank][at + 1 :]]
    return play(programs, {}), ("differs", (rank,))


def _absent(ranks: int) -> tuple[Records, tuple[str, tuple[int, ...]]]:
    """One rank stops, and has left or is in no call."""
    programs = _program(ranks, 12)
    rank = random.randrange(ranks)
    programs[rank] = programs[rank][: random.randrange(1, len(programs[rank]) - 1)]
    return play(programs, {rank: random.random() < 0.5}), ("absent", (rank,))


def _circle(ranks: int) -> tuple[Records, tuple[str, tuple[int, ...]]]:
    """Three ranks in a ring of pairs, each begins with its own; the others wait for one of them."""
    programs = _program(ranks, 6)
    ring = random.sample(range(ranks), 3)
    pairs = [tuple(sorted((ring[i], ring[(i + 1) % 3]))) for i in range(3)]
    for i, rank in enumerate(ring):
        programs[rank] += [("all_reduce", pairs[i], 8), ("all_reduce", pairs[i - 1], 8)]
    for rank in range(ranks):
        programs[rank] += [("broadcast", tuple(range(ranks)), 8)]
    return play(programs, {}), ("circle", tuple(sorted(ring)))


def _healthy(ranks: int) -> tuple[Records, tuple[str, tuple[int, ...]]]:
    """All calls are over."""
    return play(_program(ranks, 12), dict.fromkeys(range(ranks), True)), ("healthy", ())


DRAWN = {"differs": _differs, "absent": _absent, "circle": _circle, "healthy": _healthy}


def drawn(kind: str) -> tuple[Records, tuple[str, tuple[int, ...]]]:
    """Records, and what is right of them: of a kind that hangs, if it is not healthy."""
    while True:
        records, right = DRAWN[kind](random.randint(4, 6))
        waits = [rank for rank, r in records.items() if r["calls"] and not r["calls"][-1]["done"]]
        if bool(waits) == (kind != "healthy"):
            return records, right
