"""Answers to resume_anywhere: see test_exercises.py."""

_START = '        return {"opened": self.opened, "begun": list(self.begun.items())}\n'
_LOAD = 'self.opened, self.begun = state["opened"], dict(state["begun"])'
_EMPTY = "            if not any(step):\n                return\n"
_NEXT = "elif self.opened < len(self.order):"

# The lesson's cell, over the samples of the shuffled shards.
LESSON = """
class ResumableShards:
    def __init__(self, sizes, size, rank, batch):
        order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(0)).tolist()
        self.order = [(shard, place) for shard in order for place in range(sizes[shard])]
        self.total, self.size, self.rank, self.batch, self.used = len(self.order), size, rank, batch, 0

    def __iter__(self):
        while self.used < self.total:
            end = self.used + self.size * self.batch
            batch = self.order[self.used : end]{mine}
            self.used = min(end, self.total)
            yield batch

    def state(self):
        return {{"used": self.used}}

    def load(self, state):
        self.used = state["used"]
"""

MUTANTS = [
    (
        "shards that were begun are forgotten",
        "What becomes of shards that were begun",
        ((_START, '        return {"opened": self.opened, "begun": []}\n'),),
    ),
    (
        "the lesson's cell: one number, and every rank reads any place",
        "a shard is read from front to back",
        LESSON.format(mine="[self.rank :: self.size]"),
    ),
    (
        "the lesson's cell, each rank a run of neighbours",
        "one rank or all of them",
        LESSON.format(mine="[self.rank * self.batch : (self.rank + 1) * self.batch]"),
    ),
    (
        "shards that were begun start again",
        "are read more than once",
        ((_LOAD, 'self.opened, self.begun = state["opened"], {shard: 0 for shard, _ in state["begun"]}'),),
    ),
    (
        "this rank's own shard alone is saved",
        "What becomes of shards that were begun",
        (
            ("        while True:\n", "        self.mine = mine\n        while True:\n"),
            (_START, '        own = getattr(self, "mine", [None] * self.size)[self.rank]\n        return {"opened": self.opened, "begun": [] if own is None else [(own, self.begun[own])]}\n'),
        ),
    ),
    (
        "a rank that has nothing left ends, and counts no more",
        "are read more than once",
        ((_EMPTY, "            if not step[self.rank]:\n                return\n"),),
    ),
    (
        "one batch is prepared ahead, and counted",
        "or what has been prepared",
        (
            ("        while True:\n", "        ahead = None\n        while True:\n"),
            (_EMPTY, "            if ahead is not None:\n                yield ahead[self.rank]\n            ahead = step\n" + _EMPTY),
            ("            yield step[self.rank]\n", ""),
        ),
    ),
    (
        "shards dealt by turns, as many for each rank",
        "Who should get the next shard",
        """
class ResumableShards:
    def __init__(self, sizes, size, rank, batch):
        self.sizes, self.size, self.rank, self.batch = sizes, size, rank, batch
        order = torch.randperm(len(sizes), generator=torch.Generator().manual_seed(0)).tolist()
        self.left = [(shard, 0) for shard in order]

    def __iter__(self):
        parts = [self.left[rank :: self.size] for rank in range(self.size)]
        while any(parts):
            step = []
            for rank, part in enumerate(parts):
                taken = []
                while part and len(taken) < self.batch:
                    shard, start = part[0]
                    end = min(start + self.batch - len(taken), self.sizes[shard])
                    taken += [(shard, place) for place in range(start, end)]
                    part[:1] = [(shard, end)] if end < self.sizes[shard] else []
                step.append(taken)
            self.left = [one for part in parts for one in part]
            yield step[self.rank]

    def state(self):
        return {"left": self.left}

    def load(self, state):
        self.left = [tuple(one) for one in state["left"]]
""",
    ),
    (
        "how far every shard is",
        "bytes of JSON",
        (
            (_START, '        read = {s: self.sizes[s] for s in self.order[: self.opened]} | self.begun\n        return {"read": list(read.items()), "opened": self.opened, "begun": list(self.begun.items())}\n'),
        ),
    ),
    (
        "not shuffled",
        "Are they shuffled",
        (("self.order = torch.randperm(len(sizes), generator=generator).tolist()", "self.order = list(range(len(sizes)))"),),
    ),
    (
        "an order that depends on the number of ranks",
        "The number of ranks changes",
        (
            ("generator = torch.Generator().manual_seed(0)", "generator = torch.Generator().manual_seed(size)"),
            ("mine[rank], self.begun[mine[rank]]", "mine[rank], self.begun.get(mine[rank], 0)"),
            ("                        del self.begun[shard]\n", "                        self.begun.pop(shard, None)\n"),
        ),
    ),
    (
        "the last shard is never opened",
        "of those that nobody has opened",
        ((_NEXT, "elif self.opened < len(self.order) - 1:"),),
    ),
]  # fmt: skip

NOTHING = [
    (
        "forgets where it was",
        """
class ResumableShards:
    def __init__(self, sizes, size, rank, batch):
        self.order = [(s, p) for s in reversed(range(len(sizes))) for p in range(sizes[s])]
        self.batch = batch if rank == 0 else 0

    def __iter__(self):
        for i in range(0, len(self.order), self.batch or len(self.order)):
            yield self.order[i : i + self.batch]

    def state(self):
        return {}

    def load(self, state):
        pass
""",
    ),
]

ACCEPTED = [
    (
        "the steps of each rank's number so far, made again from the start",
        """
class ResumableShards:
    def __init__(self, sizes, size, rank, batch):
        import random
        self.sizes, self.rank = sizes, rank
        self.order = list(range(len(sizes)))
        random.Random("shards").shuffle(self.order)
        self.history = [[size, batch, 0]]

    def walk(self, size, batch, begun, waiting):
        open_now = [None] * size
        while True:
            step = []
            for rank in range(size):
                part = []
                for _ in range(batch):
                    if open_now[rank] is None and waiting:
                        open_now[rank] = waiting.pop(0)
                    shard = open_now[rank]
                    if shard is None:
                        continue
                    part.append((shard, begun.get(shard, 0)))
                    begun[shard] = begun.get(shard, 0) + 1
                    if begun[shard] == self.sizes[shard]:
                        open_now[rank] = None
                step.append(part)
            yield step

    def __iter__(self):
        begun = {}
        for size, batch, steps in self.history:
            first = [s for s in self.order if 0 < begun.get(s, 0) < self.sizes[s]]
            waiting = first + [s for s in self.order if s not in begun]
            walk = self.walk(size, batch, begun, waiting)
            for _ in range(steps):
                next(walk)
        for step in walk:
            if not any(step):
                return
            self.history[-1][2] += 1
            yield step[self.rank]

    def state(self):
        return {"history": self.history}

    def load(self, state):
        self.history = state["history"] + self.history
""",
    ),
    (
        "pairs of those that are left, in lists",
        (
            (_START, '        return {"a": self.opened, "b": [n for pair in self.begun.items() for n in pair]}\n'),
            (_LOAD, 'flat = state["b"]\n        self.opened, self.begun = state["a"], dict(zip(flat[::2], flat[1::2]))'),
        ),
    ),
    (
        "shards that were begun come last on the first ranks, the longest rest first",
        (("waiting = list(self.begun)", "waiting = sorted(self.begun, key=lambda s: self.begun[s] - self.sizes[s])"),),
    ),
]  # fmt: skip
