"""Plausible wrong answers to lesson 07's exercises: (name, words of the sentence that rejects it, code)."""

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

TOKENS = """
def token_batches(lengths, budget, size):
    def tokens(batch):
        return max(lengths[i] for i in batch) * len(batch)
    batches = [[]]
    for index in {order}:
        if max(lengths[index], *[lengths[i] for i in batches[-1]], 0) * (len(batches[-1]) + 1) > budget:
            batches.append([])
        batches[-1].append(index)
    {even}
    {sort}
    steps = [batches[i : i + size] for i in range(0, len(batches), size)]
    order = {shuffle}
    return [steps[i] for i in order]
"""
BY_LENGTH = "sorted(range(len(lengths)), key=lambda i: lengths[i])"
SPLIT = """while len(batches) % size:
        large = max(batches, key=len)
        batches.remove(large)
        batches += [large[: len(large) // 2], large[len(large) // 2 :]]"""
SORT = "batches.sort(key=tokens)"
SHUFFLE = "torch.randperm(len(steps), generator=torch.Generator().manual_seed(0)).tolist()"


def tokens(order: str = BY_LENGTH, even: str = SPLIT, sort: str = SORT, shuffle: str = SHUFFLE):
    return TOKENS.format(order=order, even=even, sort=sort, shuffle=shuffle)


def resumable(body: str, seed: str = "0"):
    return RESUMABLE.format(body=body, seed=seed)


CACHE = """
class EpochCache:
    def __init__(self, capacity):
        self.capacity, self.kept = capacity, {{}}
    def get(self, index, make):
{body}
"""

MUTANTS = {
    "exact_partition": [
        (
            "padded as PyTorch's sampler does",
            "Is anything padded",
            """
def part_of(total, size, rank, epoch):
    order = torch.randperm(total, generator=torch.Generator().manual_seed(epoch)).tolist()
    order = (order * size)[: -(-total // size) * size]
    return order[rank::size]
""",
        ),
        (
            "the rest is dropped",
            "Who reads the rest",
            """
def part_of(total, size, rank, epoch):
    order = torch.randperm(total, generator=torch.Generator().manual_seed(epoch)).tolist()
    return order[: total // size * size][rank::size]
""",
        ),
        (
            "each rank shuffles with its own random state",
            "also where their own random states differ",
            """
def part_of(total, size, rank, epoch):
    return torch.randperm(total)[rank::size].tolist()
""",
        ),
        (
            "every rank shuffles its own fixed part: the epoch only moves samples within it",
            "Does a rank take a block of the order",
            """
def part_of(total, size, rank, epoch):
    part = torch.arange(total)[rank::size]
    return part[torch.randperm(len(part), generator=torch.Generator().manual_seed(epoch))].tolist()
""",
        ),
        (
            "the epoch is forgotten",
            "Where does the epoch come in",
            """
def part_of(total, size, rank, epoch):
    return torch.randperm(total, generator=torch.Generator().manual_seed(0))[rank::size].tolist()
""",
        ),
        (
            "blocks of the order",
            "Does a rank take a block of the order",
            """
def part_of(total, size, rank, epoch):
    order = torch.randperm(total, generator=torch.Generator().manual_seed(epoch))
    return order.tensor_split(size)[rank].tolist()
""",
        ),
        (
            "the last rank takes the whole rest",
            "deal out cards",
            """
def part_of(total, size, rank, epoch):
    order = torch.randperm(total, generator=torch.Generator().manual_seed(epoch)).tolist()
    each = total // size
    return order[rank * each : (rank + 1) * each if rank < size - 1 else total]
""",
        ),
    ],
    "resume_anywhere": [
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
    ],
    "batches_by_tokens": [
        (
            "the last batches are dropped",
            "What became of the batches that do not fill",
            tokens(even="batches = batches[: len(batches) // size * size]"),
        ),
        (
            "the last step is filled up by the first batches",
            "filled up by batches that have been used",
            tokens(even="batches += batches[: -len(batches) % size]"),
        ),
        ("the last step is not full", "leaves the others waiting", tokens(even="pass")),
        (
            "sequences come in random order",
            "Which sequences should share a batch",
            tokens(
                order="torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0)).tolist()"
            ),
        ),
        (
            "counts real tokens, without the padding",
            "What does one long sequence do",
            """
def token_batches(lengths, budget, size):
    batches, full = [[]], 0
    for index in torch.randperm(len(lengths), generator=torch.Generator().manual_seed(0)).tolist():
        if full + lengths[index] > budget:
            batches.append([])
            full = 0
        batches[-1].append(index)
        full += lengths[index]
    while len(batches) % size:
        large = max(batches, key=len)
        batches.remove(large)
        batches += [large[: len(large) // 2], large[len(large) // 2 :]]
    return [batches[i : i + size] for i in range(0, len(batches), size)]
""",
        ),
        (
            "batches are dealt out in random order",
            "Which batches should stand in one step",
            tokens(
                sort="batches = [batches[i] for i in torch.randperm(len(batches), generator=torch.Generator().manual_seed(0)).tolist()]"
            ),
        ),
        (
            "steps are not shuffled",
            "Lengths go one way",
            tokens(
                sort="pass",
                shuffle="range(len(steps))",
                even=SPLIT + "\n    batches.sort(key=lambda b: lengths[b[-1]])",
            ),
        ),
        (
            "each rank shuffles with its own random state",
            "What must the shuffling depend on",
            tokens(shuffle="torch.randperm(len(steps)).tolist()"),
        ),
    ],
    "epoch_cache": [
        (
            "least recently used",
            "which of the two comes sooner",
            CACHE.format(
                body="""
        sample = self.kept.pop(index) if index in self.kept else make(index)
        self.kept[index] = sample
        if len(self.kept) > self.capacity:
            del self.kept[next(iter(self.kept))]
        return sample
"""
            ),
        ),
        (
            "first in, first out",
            "which of the two comes sooner",
            CACHE.format(
                body="""
        if index in self.kept:
            return self.kept[index]
        sample = make(index)
        self.kept[index] = sample
        if len(self.kept) > self.capacity:
            del self.kept[next(iter(self.kept))]
        return sample
"""
            ),
        ),
        (
            "keeps everything",
            "How many do you keep",
            CACHE.format(
                body="""
        if index not in self.kept:
            self.kept[index] = make(index)
        return self.kept[index]
"""
            ),
        ),
        (
            "one place for several samples",
            "Under which key",
            CACHE.format(
                body="""
        if not self.capacity:
            return make(index)
        place = index % self.capacity
        if place not in self.kept:
            self.kept[place] = make(index)
        return self.kept[place]
"""
            ),
        ),
        (
            "keeps one too many",
            "How many do you keep",
            CACHE.format(
                body="""
        if index in self.kept:
            return self.kept[index]
        sample = make(index)
        if len(self.kept) <= self.capacity:
            self.kept[index] = sample
        return sample
"""
            ),
        ),
    ],
}
