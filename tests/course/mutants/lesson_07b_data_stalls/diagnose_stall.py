"""Answers to diagnose_stall: see test_exercises.py."""

_FIRST = '(what != "wait: batch" or batch > 0)'
_STARVING = 'starving = [r for r in range(ranks) if spent[r, "wait: batch"] > 0.03 * whole]'
_WHERE = "odd, where = starving[0], starving[0] if len(starving) == 1 else None"
_START = "        if all(first[epoch] > 2 * begins[epoch] for epoch in first):\n"
_SLOW = 'slow = max(range(ranks), key=lambda r: spent[r, "compute"])'
_SLOWER = 'spent[slow, "compute"] > 1.2 * max(others)'
_UNEQUAL = "    if max(batches) > min(batches) + 1:\n"
_ROOM = '    if spent[odd, "wait: room"] > 0.1 * (spent[odd, "read"] + spent[odd, "decode"]):\n'
_READ = '"storage" if spent[odd, "read"] > spent[odd, "decode"] else "decode"'

MUTANTS = [
    (
        "the longest waiting of all ranks and workers together",
        "Who waits only because another one waits",
        """
from collections import Counter


def diagnose_stall(rows, ranks):
    waited, by_rank = Counter(), Counter()
    for rank, worker, epoch, batch, what, start, end in rows:
        if what.startswith("wait"):
            waited[what] += end - start
        else:
            by_rank[what, rank] += end - start
    what = max(waited, key=waited.get)
    if what == "wait: room":
        return "healthy", None
    if what == "wait: ranks":
        return "compute", max(range(ranks), key=lambda r: by_rank["compute", r])
    read, decode = (sum(by_rank[one, r] for r in range(ranks)) for one in ("read", "decode"))
    return ("storage" if read > decode else "decode"), None
""",
    ),
    (
        "the rank that waits longest",
        "Which rank makes the others wait",
        (
            (
                _WHERE,
                'odd = max(range(ranks), key=lambda r: spent[r, "wait: batch"] + spent[r, "wait: ranks"])\n'
                "    where = odd if len(starving) == 1 else None",
            ),
        ),
    ),
    (
        "what all workers do most",
        "not all workers together",
        (
            (
                _READ,
                '"storage" if sum(spent[r, "read"] for r in range(ranks)) > sum(spent[r, "decode"] for r in range(ranks)) '
                'else "decode"',
            ),
        ),
    ),
    (
        "the first batch is waited for in a healthy job, too",
        "all for the first batch",
        ((_FIRST, "True"), ("> 0.03 * whole", "> 0.001 * whole")),
    ),
    (
        "the end of the epoch is not looked at",
        "who makes the batches that it gets then",
        ((_UNEQUAL, "    if False:\n"),),
    ),
    (
        "unequal workers are a fault wherever they are",
        "Which waiting makes a step longer",
        (
            (
                "    if not starving:\n",
                "    by_rank = {}\n"
                "    for (r, epoch, worker), n in made.items():\n"
                "        if worker is not None:\n"
                "            by_rank.setdefault((r, epoch), []).append(n)\n"
                "    for (r, _), numbers in by_rank.items():\n"
                "        if max(numbers) > min(numbers) + 1:\n"
                '            return "shards", r\n'
                "    if not starving:\n",
            ),
        ),
    ),
    (
        "both epochs together: the worker that has more is another one in each",
        "who makes the batches that it gets then",
        (("made[rank, epoch, worker]", "made[rank, 0, worker]"), ("min(batches) + 1", "2.1 * min(batches)")),
    ),
    (
        "workers that wait for room are quick enough, and so is the rest",
        "if they wait themselves at other times",
        ((_ROOM, "    if False:\n"),),
    ),
    (
        "long reads are a fault even where they are hidden",
        "Which waiting makes a step longer",
        (
            (
                "    if not starving:\n",
                '    reads = sorted(row[-1] - row[-2] for row in rows if row[4] == "read")\n'
                "    if reads[-1] > 3 * reads[-9]:\n"
                '        return "prefetch", None\n'
                "    if not starving:\n",
            ),
        ),
    ),
    (
        "nobody looks at the beginning of an epoch",
        "When in an epoch does everybody wait",
        ((_START, "        if False:\n"),),
    ),
    (
        "a rank that waits for others is the slow one",
        "Which rank waits least for the others",
        ((_SLOW, 'slow = max(range(ranks), key=lambda r: spent[r, "wait: ranks"])'),),
    ),
    (
        "one rank always computes longest",
        "Which waiting makes a step longer",
        ((_SLOWER, 'spent[slow, "compute"] > max(others)'),),
    ),
    (
        "all ranks are named",
        "you say ('storage', (",
        ((_WHERE, "odd, where = starving[0], starving"),),
    ),
    ("the kind alone", "A diagnosis is two things", (('return "storage"', 'return ("storage",)[0], where, "storage"'),)),
]  # fmt: skip

NOTHING = [
    ("always healthy", '\ndef diagnose_stall(rows, ranks):\n    return "healthy", None\n'),
]

# Each step by itself: whoever ends last has made it so long.
STEPS = """
from collections import Counter, defaultdict


def diagnose_stall(rows, ranks):
    steps, workers = defaultdict(dict), defaultdict(list)
    for rank, worker, epoch, batch, what, start, end in rows:
        if worker is None:
            steps[epoch, batch][rank, what] = (start, end)
        else:
            workers[rank].append((epoch, batch, worker, what, start, end))
    usual = sorted(s[r, "compute"][1] - s[r, "compute"][0] for s in steps.values() for r in range(ranks))
    usual = usual[len(usual) // 4]
    late, blamed = Counter(), Counter()
    for (epoch, batch), step in steps.items():
        last = max(range(ranks), key=lambda r: step[r, "compute"][1])
        waited = sum(end - start for start, end in [step.get((last, "wait: batch"), (0.0, 0.0))])
        if batch == 0:
            work = [row for row in workers[last] if row[:2] == (epoch, 0) and row[3] != "wait: room"]
            late["start"] += waited > 2.5 * sum(row[5] - row[4] for row in work)
        elif waited > 0.2 * usual:
            blamed[last] += waited
        elif step[last, "compute"][1] - step[last, "compute"][0] > 1.2 * usual:
            late[last] += 1
    if not blamed:
        if late["start"]:
            return ["start", None]
        rank, number = max(late.items(), key=lambda one: one[1])
        return ["compute", rank] if number > len(steps) / 2 else ["healthy", None]
    worst = max(blamed, key=blamed.get)
    where = worst if len(blamed) == 1 else None
    ends = defaultdict(set)
    for epoch, batch, worker, what, start, end in workers[worst]:
        if batch >= len(steps) // 2 - 5:
            ends[epoch].add(worker)
    if all(len(one) == 1 for one in ends.values()):
        return ["shards", where]
    time = Counter()
    for _, _, _, what, start, end in workers[worst]:
        time[what] += end - start
    if time["wait: room"] > 0.12 * sum(time.values()):
        return ["prefetch", where]
    return [max(("storage", time["read"]), ("decode", time["decode"]), key=lambda one: one[1])[0], where]
"""

# Averages of each rank, compared with the others' and with what a worker would have to give.
TENSORS = """
import torch


def diagnose_stall(rows, ranks):
    kinds = ("wait: batch", "wait: ranks", "compute", "wait: room", "read", "decode")
    batches = 1 + max(row[3] for row in rows)
    seconds = torch.zeros(ranks, len(kinds), 2, batches, dtype=torch.double)
    makers = {}
    for rank, worker, epoch, batch, what, start, end in rows:
        seconds[rank, kinds.index(what), epoch, batch] += end - start
        if what == "read":
            makers[rank, epoch, batch] = worker
    later = seconds[..., 1:].sum((2, 3))
    computing = later[:, 2]
    starving = later[:, 0] > 0.04 * computing
    if not starving.any():
        first = seconds[:, 0, :, 0].mean()
        if first > 3 * seconds[:, 4:, :, 0].sum(1).mean():
            return "start", None
        slow = int(computing.argmax())
        return ("compute", slow) if computing[slow] > 1.15 * computing.median() else ("healthy", None)
    rank = int(later[:, 0].argmax())
    where = None if int(starving.sum()) > 1 else rank
    turns = [makers[rank, 0, batch] for batch in range(batches)]
    if len(set(turns[-5:])) == 1:
        return "shards", where
    # Made quickly enough on the whole, each worker's room taken out?
    if later[rank, 3] > 0.15 * later[rank, 4:].sum():
        return "prefetch", where
    return ("storage", "decode")[int(later[rank, 5] > later[rank, 4])], where
"""

ACCEPTED = [
    ("step by step: who was last, and why", STEPS),
    ("with tensors, in averages", TENSORS),
]
