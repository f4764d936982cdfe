"""Answers to resume_anywhere: see test_exercises.py."""

RESUMABLE = """
class Resumable:
    def __init__(self, total, size, rank, batch):
        self.total, self.size, self.rank, self.batch = total, size, rank, batch
        self.used = 0
    def order(self):
        return torch.randperm(self.total, generator=torch.Generator().manual_seed({seed})).tolist()
    def __iter__(self):
{body}
    def state(self):
        return {{"used": self.used}}
    def load(self, state):
        self.used = state["used"]
"""


def resumable(body: str, seed: str = "0"):
    return RESUMABLE.format(body=body, seed=seed)


MUTANTS = [
    (
        "the position is this rank's number of samples",
        "of all ranks together, or of this rank alone",
        resumable("""
        mine = self.order()[self.rank :: self.size]
        while self.used < len(mine):
            batch = mine[self.used : self.used + self.batch]
            self.used += len(batch)
            yield batch
"""),
    ),
    (
        "the epoch starts again",
        "are read more than once",
        resumable("""
        order = self.order()
        self.used = 0
        while self.used < self.total:
            start, self.used = self.used, min(self.used + self.size * self.batch, self.total)
            if order[start + self.rank : self.used : self.size]:
                yield order[start + self.rank : self.used : self.size]
"""),
    ),
    (
        "one batch is prepared ahead, and counted",
        "what has been handed out, or what has been prepared",
        resumable("""
        order, ahead = self.order(), None
        while self.used < self.total or ahead:
            start, self.used = self.used, min(self.used + self.size * self.batch, self.total)
            following = order[start + self.rank : self.used : self.size]
            if ahead:
                yield ahead
            ahead = following
"""),
    ),
    (
        "counts the samples of the last batch as this rank has them",
        "are read more than once",
        resumable("""
        mine = self.order()[self.used + self.rank :: self.size]
        for i in range(0, len(mine), self.batch):
            batch = mine[i : i + self.batch]
            self.used = min(self.used + len(batch) * self.size, self.total)
            yield batch
"""),
    ),
    (
        "the order depends on the number of ranks",
        "The number of ranks changes",
        resumable(
            """
        order = self.order()
        while self.used < self.total:
            start, self.used = self.used, min(self.used + self.size * self.batch, self.total)
            if order[start + self.rank : self.used : self.size]:
                yield order[start + self.rank : self.used : self.size]
""",
            seed="self.size",
        ),
    ),
    (
        "remembers every sample that was used, by all ranks",
        "bytes of JSON",
        """
class Resumable:
    def __init__(self, total, size, rank, batch):
        self.total, self.size, self.rank, self.batch = total, size, rank, batch
        self.seen = []
    def __iter__(self):
        order = torch.randperm(self.total, generator=torch.Generator().manual_seed(0)).tolist()
        while len(self.seen) < self.total:
            step = [i for i in order if i not in set(self.seen)][: self.size * self.batch]
            self.seen += step
            if step[self.rank :: self.size]:
                yield step[self.rank :: self.size]
    def state(self):
        return {"seen": self.seen}
    def load(self, state):
        self.seen = list(state["seen"])
""",
    ),
    (
        "not shuffled",
        "Are they shuffled",
        resumable("""
        order = list(range(self.total))
        while self.used < self.total:
            start, self.used = self.used, min(self.used + self.size * self.batch, self.total)
            if order[start + self.rank : self.used : self.size]:
                yield order[start + self.rank : self.used : self.size]
"""),
    ),
]

NOTHING = [
    (
        "forgets where it was",
        """
import random


class Resumable:
    def __init__(self, total, size, rank, batch):
        self.order = random.Random(0).sample(range(total), total)[rank::size]
        self.batch = batch

    def __iter__(self):
        for i in range(0, len(self.order), self.batch):
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
        "each rank a run of neighbours",
        (
            (
                "mine = order[start + self.rank : self.used : self.size].tolist()",
                "step = order[start : self.used].tolist()\n"
                "            mine = step[self.rank * self.batch : (self.rank + 1) * self.batch]",
            ),
        ),
    ),
    (
        "Python's shuffle, and what is left",
        """
class Resumable:
    def __init__(self, total, size, rank, batch):
        import random
        self.order = list(range(total))
        random.Random("an epoch").shuffle(self.order)
        self.left, self.place, self.step = total, rank, (size, batch)

    def __iter__(self):
        return self

    def __next__(self):
        size, batch = self.step
        rest = self.order[len(self.order) - self.left :]
        mine = rest[: size * batch][self.place :: size]
        self.left = max(0, self.left - size * batch)
        if not mine:
            raise StopIteration
        return mine

    def state(self):
        return {"left": self.left}

    def load(self, state):
        self.left = state["left"]
""",
    ),
]
