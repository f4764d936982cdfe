"""Answers to transpose: see test_exercises.py."""

MUTANTS = [
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
]

NOTHING = [
    (
        "rows.T",
        """
def transpose(rows):
    return rows.T
""",
    ),
]

ACCEPTED = [
    (
        "send and receive",
        """
def transpose(rows):
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = [block.t().contiguous() for block in rows.chunk(size, dim=1)]
    came = [torch.empty_like(block) for block in blocks]
    came[rank] = blocks[rank]
    others = [r for r in range(size) if r != rank]
    work = [dist.irecv(came[r], r) for r in others] + [dist.isend(blocks[r], r) for r in others]
    for one in work:
        one.wait()
    return torch.cat(came, dim=1)
""",
    ),
    (
        "one scatter from each rank, transposed on arrival",
        """
def transpose(rows):
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = [block.contiguous() for block in rows.chunk(size, dim=1)]
    came = []
    for source in range(size):
        came.append(torch.empty_like(blocks[0]))
        dist.scatter(came[-1], blocks if source == rank else None, src=source)
    return torch.cat(came).t()
""",
    ),
]
