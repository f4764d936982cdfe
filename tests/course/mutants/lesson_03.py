"""Plausible wrong answers to lesson 03's exercises: (name, words of the sentence that rejects it, code)."""

MUTANTS = {
    "all_gather_on_a_budget": [
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
    ],
    "mean_and_variance": [
        (
            "averages the ranks' means",
            "different numbers of values",
            """
def mean_and_variance(x):
    sums = torch.stack([x.double().mean(), x.double().square().mean()])
    dist.all_reduce(sums)
    mean, square = sums / dist.get_world_size()
    return mean, square - mean**2
""",
        ),
        (
            "averages the ranks' variances",
            "that spread is part of the variance",
            """
def mean_and_variance(x):
    x = x.double()
    n = torch.tensor(float(len(x)), dtype=torch.double)
    sums = torch.stack([n, x.sum(), x.var(unbiased=False) * n])
    dist.all_reduce(sums)
    return sums[1] / sums[0], sums[2] / sums[0]
""",
        ),
        (
            "float32 sums",
            "how many digits does float32 have",
            """
def mean_and_variance(x):
    sums = torch.stack([torch.tensor(float(len(x))), x.sum(), x.square().sum()])
    dist.all_reduce(sums)
    mean = sums[1] / sums[0]
    return mean.double(), (sums[2] / sums[0] - mean**2).double()
""",
        ),
        (
            "two passes, two messages",
            "one all_reduce is enough",
            """
def mean_and_variance(x):
    x = x.double()
    first = torch.stack([torch.tensor(float(len(x)), dtype=torch.double), x.sum()])
    dist.all_reduce(first)
    mean = first[1] / first[0]
    second = (x - mean).square().sum()
    dist.all_reduce(second)
    return mean, second / first[0]
""",
        ),
        (
            "the unbiased variance",
            "variance on rank",
            """
def mean_and_variance(x):
    x = x.double()
    sums = torch.stack([torch.tensor(float(len(x)), dtype=torch.double), x.sum(), x.square().sum()])
    dist.all_reduce(sums)
    n, total, squares = sums
    return total / n, (squares - total**2 / n) / (n - 1)
""",
        ),
    ],
    "transpose": [
        (
            "gathers the whole matrix everywhere",
            "Which collective sends each rank only its own part",
            """
def transpose(rows):
    parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, rows)
    return torch.cat(parts).t().chunk(dist.get_world_size())[dist.get_rank()]
""",
        ),
        (
            "moves the blocks and leaves them as they are",
            "should end with",
            """
def transpose(rows):
    size = dist.get_world_size()
    blocks = torch.stack([block.contiguous() for block in rows.chunk(size, dim=1)])
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks)
    return torch.cat(list(received), dim=1)
""",
        ),
        (
            "right shape, blocks only reshaped",
            "what is still to be done inside each",
            """
def transpose(rows):
    size = dist.get_world_size()
    blocks = torch.stack([block.contiguous() for block in rows.chunk(size, dim=1)])
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks)
    p, m, n = received.shape
    return received.reshape(n, p * m)
""",
        ),
        (
            "transposes its own rows and nothing else",
            "should end with",
            """
def transpose(rows):
    return rows.t().contiguous()
""",
        ),
    ],
}
