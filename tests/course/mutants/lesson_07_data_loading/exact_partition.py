"""Answers to exact_partition: see test_exercises.py."""

MUTANTS = [
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
]

NOTHING = [
    (
        "in the samples' own order",
        """
def part_of(total, size, rank, epoch):
    return list(range(rank, total, size))
""",
    ),
]

ACCEPTED = [
    (
        "Python's own shuffle",
        """
def part_of(total, size, rank, epoch):
    import random
    order = list(range(total))
    random.Random(epoch).shuffle(order)
    return order[rank::size]
""",
    ),
    (
        "numpy's permutation",
        """
def part_of(total, size, rank, epoch):
    import numpy
    order = numpy.random.default_rng(epoch).permutation(total)
    return [order[place] for place in range(rank, total, size)]
""",
    ),
]
