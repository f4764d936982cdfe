"""Answers to two_changes: see test_exercises.py."""

_EVERY = '        every = load / 2 if "workers" in changes else load\n'
_SCALE = 'min(busy) / busy[rank] if "card" in changes else 1.0'
_KEEP = 'layer in seen and "keep" in changes'
_RETURN = "    return min(itertools.combinations(names, 2), key=seconds)\n"

MUTANTS = [
    (
        "the two that gain most alone",
        "what limits then",
        ((_RETURN, "    return sorted(names, key=lambda name: seconds((name,)))[:2]\n"),),
    ),
    (
        "the loader is as slow as ever",
        "is each batch there at the moment",
        ((_EVERY, "        every = load\n"),),
    ),
    (
        "no rank is slow",
        "For whose gradients do all ranks wait",
        ((_SCALE, "min(busy) / busy[rank]"),),
    ),
    (
        "what is repeated costs nothing",
        "How often does each layer's forward run",
        ((_KEEP, "layer in seen"),),
    ),
    (
        "larger buckets, always",
        "is each batch there at the moment",
        ((_RETURN, '    return "buckets", "network"\n'),),
    ),
    (
        "three changes",
        "A choice is two of",
        ((_RETURN, "    return names[:3]\n"),),
    ),
]

NOTHING = [
    (
        "the first two of the list",
        '\ndef two_changes(events, load):\n    return "card", "workers"\n',
    ),
]

ACCEPTED = [
    (
        "in numpy, by the slowest rank's time per layer",
        """
import itertools

import numpy as np


def two_changes(events, load):
    def of(rank, what):
        return [row for row in events[rank] if row[0] == what]

    layer = np.array([np.median([b - a for *_, a, b in of(r, "forward")]) for r in range(len(events))])
    steps = len(of(0, "load"))
    count = 1 + max(row[1] for row in of(0, "backward"))
    repeats = len(of(0, "forward")) // steps - count
    sizes = np.array([row[1] for row in of(0, "all_reduce")], float)
    calls = np.array([[row[2] for row in of(r, "all_reduce")] for r in range(len(events))]).max(0)
    ends = np.array([[row[3] for row in of(r, "all_reduce")] for r in range(len(events))]).max(0)
    took = ends - np.maximum(calls, np.concatenate([[0.0], ends[:-1]]))
    few = sorted(set(sizes))
    slope, fixed = np.polyfit(few, [took[sizes == one].min() for one in few], 1)
    sizes = sizes[: len(sizes) // steps]

    def seconds(two):
        time = layer.min() if "card" in two else layer.max()
        again = np.arange(count)[::-1] < (0 if "keep" in two else repeats)
        done = count + np.cumsum(2.0 + again)
        mine = np.add.reduceat(sizes, np.arange(0, len(sizes), 2)) if "buckets" in two else sizes
        last = np.rint(np.cumsum(mine) / sizes.sum() * count).astype(int) - 1
        now = 0.0
        for step in range(steps):
            begin, now = max(now, step * load / (1 + ("workers" in two))), 0.0
            for size, call in zip(mine, begin + time * done[last]):
                now = max(now, call) + fixed + slope * size / (1 + ("network" in two))
        return now

    return list(min(itertools.combinations(["card", "workers", "keep", "buckets", "network"], 2), key=seconds))
""",
    ),
    (
        "backward from the end, each moment asked for once",
        """
import functools
import itertools


def two_changes(events, load):
    ranks, steps = range(len(events)), sum(row[0] == "load" for row in events[0])
    rows = [[row for row in of if row[0] != "load"][: sum(r[0] != "load" for r in of) // steps] for of in events]
    computing = [[row for row in of if row[0] != "all_reduce"] for of in rows]
    total = [sum(b - a for *_, a, b in of) for of in computing]
    sends = [row for row in rows[0] if row[0] == "all_reduce"]
    runs = list(zip(*[[row for row in of if row[0] == "all_reduce"] for of in events]))
    took = {}
    for before, same in zip([None, *runs], runs):
        begin = max([row[2] for row in same] + [row[3] for row in before or ()])
        took.setdefault(same[0][1], []).append(max(row[3] for row in same) - begin)
    (a, quick), *_, (b, slow) = sorted((size, min(each)) for size, each in took.items())
    beta = (slow - quick) / (b - a)

    def played(two):
        groups = [[i] for i in range(len(sends))]
        if "buckets" in two:
            groups = [list(range(i, min(i + 2, len(sends)))) for i in range(0, len(sends), 2)]

        def work(rank, until):
            seen, sum_ = set(), 0.0
            for what, layer, begin, end in computing[rank]:
                if end > until + 1e-12:
                    break
                if not (what == "forward" and layer in seen and "keep" in two):
                    sum_ += end - begin
                seen.add(layer)
            return sum_ * (min(total) / total[rank] if "card" in two else 1)

        offsets = {}
        for i in range(len(sends)):
            of_ranks = [[row for row in of if row[0] == "all_reduce"][i] for of in rows]
            offsets[i] = max(work(rank, of_ranks[rank][2]) for rank in ranks)

        @functools.cache
        def begins(step):
            there = step * (load / 2 if "workers" in two else load)
            return there if step == 0 else max(there, through(step - 1, len(groups) - 1))

        @functools.cache
        def through(step, bucket):
            size = sum(sends[i][1] for i in groups[bucket])
            cost = quick - beta * a + beta * size * (0.5 if "network" in two else 1)
            call = begins(step) + max(offsets[i] for i in groups[bucket])
            return cost + (max(call, through(step, bucket - 1)) if bucket else call)

        return through(steps - 1, len(groups) - 1)

    names = {"card", "workers", "keep", "buckets", "network"}
    return min(itertools.combinations(sorted(names), 2), key=played)
""",
    ),
]
