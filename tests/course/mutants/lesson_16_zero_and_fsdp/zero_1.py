"""Answers to zero_1: see test_exercises.py."""

from tests.course.edits import changed

_ZERO_1 = """
def zero_1(owner, optimizer_class, **options):
    mine = [p for p, rank in owner.items() if rank == dist.get_rank()]
    optimizer = optimizer_class([{"params": mine}], **options)

    def spread(*_):
        for p, rank in owner.items():
            dist.broadcast(p.detach(), src=rank)

    optimizer.register_step_post_hook(spread)
    return optimizer
"""

MUTANTS = [
    (
        "every rank keeps all states",
        "Which parameters does the optimizer know of",
        changed(_ZERO_1, " if rank == dist.get_rank()]", "]"),
    ),
    (
        "broadcast from rank 0, whoever owns it",
        "from whom does rank",
        changed(_ZERO_1, "src=rank", "src=0"),
    ),
    (
        "no spreading",
        "from whom does rank",
        changed(_ZERO_1, "optimizer.register_step_post_hook(spread)", "pass"),
    ),
    (
        "fails where a rank owns nothing",
        "empty parameter list",
        changed(_ZERO_1, '[{"params": mine}]', "mine"),
    ),
    (
        "a sum with zeros: twice the bytes",
        "are enough",
        changed(
            _ZERO_1,
            "            dist.broadcast(p.detach(), src=rank)",
            "            if rank != dist.get_rank():\n                p.detach().zero_()\n"
            "            dist.all_reduce(p.detach())",
        ),
    ),
    (
        "spreads before the update",
        "from whom does rank",
        changed(_ZERO_1, "register_step_post_hook", "register_step_pre_hook"),
    ),
]

NOTHING = [
    (
        "PyTorch's optimizer, whole on each rank",
        """
def zero_1(owner, optimizer_class, **options):
    return optimizer_class(list(owner), **options)
""",
    ),
    (
        "PyTorch's own",
        """
from torch.distributed.optim import ZeroRedundancyOptimizer


def zero_1(owner, optimizer_class, **options):
    return ZeroRedundancyOptimizer(list(owner), optimizer_class, **options)
""",
    ),
]

ACCEPTED = [
    (
        "all broadcasts under way at once",
        (
            (
                "        for p, rank in owner.items():\n            dist.broadcast(p.detach(), src=rank)\n",
                "        work = [dist.broadcast(p.detach(), src=r, async_op=True) for p, r in owner.items()]\n"
                "        for one in work:\n            one.wait()\n",
            ),
        ),
    ),
    (
        "one message for all that a rank owns, in a step of its own",
        """
def zero_1(owner, optimizer_class, **options):
    of_rank = [[p for p, r in owner.items() if r == rank] for rank in range(dist.get_world_size())]
    optimizer = optimizer_class([{"params": of_rank[dist.get_rank()]}], **options)
    step = optimizer.step

    def step_and_tell(closure=None):
        loss = step(closure)
        with torch.no_grad():
            for rank, owned in enumerate(of_rank):
                if owned:
                    flat = torch.cat([p.flatten() for p in owned])
                    dist.broadcast(flat, src=rank)
                    for p, part in zip(owned, flat.split([p.numel() for p in owned])):
                        p.copy_(part.view_as(p))
        return loss

    optimizer.step = step_and_tell
    return optimizer
""",
    ),
]
