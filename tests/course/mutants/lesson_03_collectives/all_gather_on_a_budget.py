"""Answers to all_gather_on_a_budget: see test_exercises.py."""

MUTANTS = [
    (
        "gathers on rank 0 and sends all from there",
        "Does one rank do the work of all",
        """
def all_gather(parts, mine):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts[rank].copy_(mine)
    if rank == 0:
        for other in range(1, size):
            dist.recv(parts[other], other)
        for other in range(1, size):
            for part in parts:
                dist.send(part, other)
    else:
        dist.send(mine, 0)
        for part in parts:
            dist.recv(part, 0)
""",
    ),
    (
        "blocking sends all round the ring",
        "wait",
        """
def all_gather(parts, mine):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts[rank].copy_(mine)
    for step in range(size - 1):
        dist.send(parts[(rank - step) % size], (rank + 1) % size)
        dist.recv(parts[(rank - step - 1) % size], (rank - 1) % size)
""",
    ),
    (
        "forgets the own part",
        "own part into its place",
        """
def all_gather(parts, mine):
    rank, size = dist.get_rank(), dist.get_world_size()
    for other in range(size):
        if other != rank:
            work = dist.isend(mine, other)
            dist.recv(parts[other], other)
            work.wait()
""",
    ),
    (
        "off by one place",
        "whose part comes from the left",
        """
def all_gather(parts, mine):
    rank, size = dist.get_rank(), dist.get_world_size()
    places = [torch.empty_like(mine) for _ in range(size)]
    places[rank].copy_(mine)
    for step in range(size - 1):
        work = dist.isend(places[(rank - step) % size], (rank + 1) % size)
        dist.recv(places[(rank - step - 1) % size], (rank - 1) % size)
        work.wait()
    for place in range(size):
        parts[(place + 1) % size].copy_(places[place])
""",
    ),
    (
        "calls torch's own",
        "build it from send and receive",
        """
def all_gather(parts, mine):
    dist.all_gather(parts, mine)
""",
    ),
    (
        "passes everything on in each step",
        "a part travel that its receiver has already",
        """
def all_gather(parts, mine):
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.zeros(size, *mine.shape)
    whole[rank] = mine
    for step in range(size - 1):
        arrived = torch.empty_like(whole)
        work = dist.isend(whole, (rank + 1) % size)
        dist.recv(arrived, (rank - 1) % size)
        work.wait()
        place = (rank - step - 1) % size
        whole[place] = arrived[place]
    for place in range(size):
        parts[place].copy_(whole[place])
""",
    ),
]

NOTHING = [
    (
        "sends nothing",
        """
def all_gather(parts, mine):
    for part in parts:
        part.copy_(mine)
""",
    ),
]

ACCEPTED = [
    (
        "to everyone directly, one distance after the other",
        """
def all_gather(parts, mine):
    rank, size = dist.get_rank(), dist.get_world_size()
    parts[rank].copy_(mine)
    for distance in range(1, size):
        sending = dist.isend(mine, (rank + distance) % size)
        dist.recv(parts[rank - distance], (rank - distance) % size)
        sending.wait()
""",
    ),
    (
        "to everyone directly, all at once",
        """
def all_gather(parts, mine):
    rank, size = dist.get_rank(), dist.get_world_size()
    others = [r for r in range(size) if r != rank]
    work = [dist.irecv(parts[r], r) for r in others] + [dist.isend(mine, r) for r in others]
    parts[rank].copy_(mine)
    for one in work:
        one.wait()
""",
    ),
]
