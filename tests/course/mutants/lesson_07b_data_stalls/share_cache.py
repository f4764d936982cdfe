"""Answers to share_cache: see test_exercises.py."""

_KEEP = "            if one not in self.holder and self.room[asker]:\n"
_SEND = """        sending = [
            dist.isend(self.mine[one], asker)
            for asker, one in enumerate(wanted)
            if self.holder.get(one) == rank and asker != rank
        ]
"""
_WAIT = """        for work in sending:
            work.wait()
"""

MUTANTS = [
    (
        "each rank for itself, as in the lesson",
        "Which other rank may have the sample",
        """
class SharedCache:
    def __init__(self, capacity, shape):
        self.capacity, self.kept = capacity, {}

    def get(self, index, read):
        if index in self.kept:
            return self.kept[index]
        sample = read(index)
        if len(self.kept) < self.capacity:
            self.kept[index] = sample
        return sample
""",
    ),
    (
        "reads what is not counted",
        "takes 1 positional argument",
        """
class SharedCache:
    def __init__(self, capacity, shape):
        self.capacity, self.last = capacity, None

    def get(self, index, read):
        if read is not self.last:
            self.last, self.free = read, self.capacity
        if self.free:
            self.free -= 1
            return read(index, [])
        return read(index)
""",
    ),
    (
        "throws out the oldest",
        "is anything thrown out that comes again",
        (
            (
                _KEEP,
                "            if one not in self.holder and self.room[asker] == 0:\n"
                "                oldest = next((i for i, r in self.holder.items() if r == asker), None)\n"
                "                if oldest is not None:\n"
                "                    del self.holder[oldest]\n"
                "                    self.room[asker] += 1\n"
                "                    self.mine.pop(oldest, None)\n" + _KEEP,
            ),
        ),
    ),
    (
        "keeps everything",
        "How many do you keep",
        ((_KEEP, "            if one not in self.holder:\n"),),
    ),
    (
        "the capacity is of all ranks together",
        "reads in an epoch after the first",
        (("[capacity] *", "[capacity // dist.get_world_size()] *"),),
    ),
    (
        "the sample goes to all ranks",
        "Who gets a sample that one rank wants",
        """
class SharedCache:
    def __init__(self, capacity, shape):
        self.shape, self.mine = shape, {}
        self.holder, self.room = {}, [capacity] * dist.get_world_size()

    def get(self, index, read):
        rank, size = dist.get_rank(), dist.get_world_size()
        wanted = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
        dist.all_gather(wanted, torch.tensor([index]))
        wanted = [int(one) for one in wanted]
        for asker, one in enumerate(wanted):
            holder = self.holder.get(one)
            if holder is None:
                if asker == rank:
                    sample = read(index)
                    if self.room[rank]:
                        self.mine[one] = sample
                if self.room[asker]:
                    self.holder[one] = asker
                    self.room[asker] -= 1
            else:
                got = self.mine[one].clone() if holder == rank else torch.empty(self.shape)
                dist.broadcast(got, holder)
                if asker == rank:
                    sample = got
        return sample
""",
    ),
    (
        "whoever sends is right",
        "Whose message does a rank receive",
        (
            (
                "            dist.isend(self.mine[one], asker)\n",
                "            dist.isend(next(iter(self.mine.values())), asker)\n",
            ),
        ),
    ),
    (
        "receives before it sends",
        "They wait for each other",
        (
            (_SEND, "        sending = []\n"),
            (
                _WAIT,
                _SEND + _WAIT,
            ),
        ),
    ),
]

NOTHING = [
    (
        "reads always",
        """
class SharedCache:
    def __init__(self, capacity, shape):
        pass

    def get(self, index, read):
        return read(index)
""",
    ),
    (
        "keeps nothing, and answers without reading",
        """
class SharedCache:
    def __init__(self, capacity, shape):
        self.shape = shape

    def get(self, index, read):
        return torch.full(self.shape, float(index))
""",
    ),
]

ACCEPTED = [
    (
        "an owner for each sample, by its number",
        """
class SharedCache:
    def __init__(self, capacity, shape):
        size = dist.get_world_size()
        self.shape, self.capacity, self.mine, self.kept = shape, capacity, {}, [set() for _ in range(size)]

    def get(self, index, read):
        rank, size = dist.get_rank(), dist.get_world_size()
        asked = torch.zeros(size, dtype=torch.int64)
        asked[rank] = index
        dist.all_reduce(asked)
        asked = asked.tolist()
        works, later, sample = [], [], None
        for asker, i in enumerate(asked):
            owner = i % size
            if i in self.kept[owner]:
                if owner == asker:
                    if rank == asker:
                        sample = self.mine[i]
                elif owner == rank:
                    works.append(dist.isend(self.mine[i], asker))
                elif asker == rank:
                    sample = torch.empty(self.shape)
                    works.append(dist.irecv(sample, owner))
        if sample is None:
            sample = read(index)
        for asker, i in enumerate(asked):
            owner = i % size
            if i not in self.kept[owner] and len(self.kept[owner]) < self.capacity:
                self.kept[owner].add(i)
                if owner == asker == rank:
                    self.mine[i] = sample
                elif asker == rank:
                    works.append(dist.isend(sample, owner))
                elif owner == rank:
                    self.mine[i] = torch.empty(self.shape)
                    works.append(dist.irecv(self.mine[i], asker))
        for work in works:
            work.wait()
        return sample
""",
    ),
    (
        "one all-to-all of parts of unequal length",
        """
class SharedCache:
    def __init__(self, capacity, shape):
        self.shape, self.room, self.mine = shape, [capacity] * dist.get_world_size(), {}
        self.holder = {}

    def get(self, index, read):
        rank, size = dist.get_rank(), dist.get_world_size()
        wanted = [None] * size
        dist.all_gather_object(wanted, index)
        holders = [self.holder.get(i) for i in wanted]
        numel = self.shape[0] * self.shape[1]
        out = [self.mine[i].flatten() for i, h in zip(wanted, holders) if h == rank]
        outgoing = [numel if h == rank else 0 for h in holders]
        incoming = [numel if r == holders[rank] else 0 for r in range(size)]
        got = torch.empty(sum(incoming))
        dist.all_to_all_single(got, torch.cat([*out, torch.empty(0)]), incoming, outgoing)
        sample = got.view(self.shape) if holders[rank] is not None else read(index)
        for asker, i in enumerate(wanted):
            if holders[asker] is None and self.room[asker]:
                self.room[asker] -= 1
                self.holder[i] = asker
                if asker == rank:
                    self.mine[i] = sample
        return sample
""",
    ),
]
