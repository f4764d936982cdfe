"""Answers to all_reduce_16: see test_exercises.py."""

from tests.course.edits import edited
from tests.course.hidden import EVERYONES

_REDUCE = """
def all_reduce_16(x):
    ranks, n = dist.get_world_size(), x.numel()
    part = -(-n // ranks)
    padded = x.new_zeros(ranks * part)
    padded[:n] = x
    arrived = torch.empty_like(padded)
    dist.all_to_all_single(arrived, padded)
    mine = arrived.view(ranks, part).float().sum(0).to(x.dtype)
    dist.all_gather(list(padded.chunk(ranks)), mine)
    x.copy_(padded[:n])
"""

MUTANTS = [
    (
        "is a plain all-reduce",
        "one rounding makes at most 0.5",
        """
def all_reduce_16(x):
    dist.all_reduce(x)
""",
    ),
    (
        "reduces in float32",
        "float32 that travels",
        """
def all_reduce_16(x):
    wide = x.float()
    dist.all_reduce(wide)
    x.copy_(wide)
""",
    ),
    (
        "sends everybody everything",
        "or only a part of it",
        """
def all_reduce_16(x):
    everything = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(everything, x)
    x.copy_(torch.stack(everything).float().sum(0))
""",
    ),
    (
        "adds up in 16 bits where the numbers arrive",
        "one rounding makes at most 0.5",
        edited(
            _REDUCE,
            (
                "arrived.view(ranks, part).float().sum(0).to(x.dtype)",
                "sum(arrived.view(ranks, part).unbind())",
            ),
        ),
    ),
    (
        "leaves out the last numbers",
        "or left out",
        """
def all_reduce_16(x):
    ranks = dist.get_world_size()
    part = x.numel() // ranks
    whole = x[: part * ranks]
    arrived = torch.empty_like(whole)
    dist.all_to_all_single(arrived, whole.clone())
    mine = arrived.view(ranks, part).float().sum(0).to(x.dtype)
    dist.all_gather(list(whole.chunk(ranks)), mine)
""",
    ),
    (
        "returns the sum and leaves x alone",
        "written into x",
        """
def all_reduce_16(x):
    wide = x.float()
    dist.all_reduce(wide)
    return wide.bfloat16()
""",
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """def all_reduce_16(x):
    x.copy_(torch.stack(everyones(x)).double().sum(0))
""",
    ),
]

NOTHING = [
    (
        "leaves it alone",
        """
def all_reduce_16(x):
    pass
""",
    ),
    (
        "PyTorch's all-reduce",
        """
def all_reduce_16(x):
    dist.all_reduce(x)
""",
    ),
]

ACCEPTED = [
    (
        "added in 64 bits",
        ((".float().sum(0)", ".double().sum(0)"),),
    ),
    (
        "by send and receive",
        """
def all_reduce_16(x):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = -(-len(x) // ranks)
    padded = torch.cat([x, x.new_zeros(ranks * part - len(x))])
    mine, others = padded.chunk(ranks), [r for r in range(ranks) if r != rank]

    def everyone(give, take):
        work = [dist.irecv(take[r], r) for r in others] + [dist.isend(give(r), r) for r in others]
        for one in work:
            one.wait()

    came = [torch.empty_like(mine[rank]) for _ in range(ranks)]
    came[rank].copy_(mine[rank])
    everyone(lambda r: mine[r].clone(), came)
    total = torch.stack(came).float().sum(0).bfloat16()
    mine[rank].copy_(total)
    everyone(lambda r: total, mine)
    x.copy_(padded[: len(x)])
""",
    ),
]
