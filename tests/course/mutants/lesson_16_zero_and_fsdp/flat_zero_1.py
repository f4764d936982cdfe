"""Answers to flat_zero_1: see test_exercises.py."""

_REDUCE = "        dist.reduce_scatter(mine.grad, runs([p.grad for p in parameters]))\n"
_PAD = "torch.nn.functional.pad(flat, (0, part * size - len(flat)))"

MUTANTS = [
    ("a sum where the mean belongs", "Is it the mean", (("        mine.grad /= size\n", ""),)),
    (
        "an all-reduce, of which a part is kept",
        "Which collective leaves each rank",
        (
            (
                _REDUCE,
                "        flat = torch.cat(runs([p.grad for p in parameters]))\n        dist.all_reduce(flat)\n"
                "        mine.grad = flat.split(part)[rank].clone()\n",
            ),
        ),
    ),
    (
        "nothing is given back",
        "do all get the new values",
        (("    optimizer.register_step_post_hook(gather)\n", ""),),
    ),
    (
        "gathers before the update",
        "do all get the new values",
        (("register_step_post_hook(gather)", "register_step_pre_hook(gather)"),),
    ),
    (
        "the neighbour's run",
        "does each rank update its own run",
        (("runs(parameters)[rank]", "runs(parameters)[rank - 1]"),),
    ),
    (
        "its own gradient: nothing is summed",
        "Is it the mean",
        ((_REDUCE, "        mine.grad = runs([p.grad for p in parameters])[rank] * size\n"),),
    ),
    (
        "the lesson's own: whole parameters",
        "whole parameters, or one run of the flat vector",
        """
def flat_zero_1(parameters, optimizer_class, **options):
    size, load, owner = dist.get_world_size(), [0] * dist.get_world_size(), {}
    for p in sorted(parameters, key=torch.numel, reverse=True):
        owner[p] = load.index(min(load))
        load[owner[p]] += p.numel()
    mine = [p for p in parameters if owner[p] == dist.get_rank()]
    optimizer = optimizer_class([{"params": mine}], **options)

    def average(*_):
        for p in parameters:
            dist.all_reduce(p.grad)
            p.grad /= size

    def spread(*_):
        for p in parameters:
            dist.broadcast(p.detach(), src=owner[p])

    optimizer.register_step_pre_hook(average)
    optimizer.register_step_post_hook(spread)
    return optimizer
""",
    ),
]

NOTHING = [
    (
        "the optimizer alone",
        """
def flat_zero_1(parameters, optimizer_class, **options):
    return optimizer_class(parameters, **options)
""",
    ),
    (
        "DDP: all-reduce, and all states everywhere",
        """
def flat_zero_1(parameters, optimizer_class, **options):
    optimizer = optimizer_class(parameters, **options)

    def average(*_):
        for p in parameters:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

    optimizer.register_step_pre_hook(average)
    return optimizer
""",
    ),
]

ACCEPTED = [
    (
        "the forms with one tensor",
        (
            (
                _REDUCE,
                "        dist.reduce_scatter_tensor(mine.grad, torch.cat(runs([p.grad for p in parameters])))\n",
            ),
            (
                "        parts = [torch.empty_like(mine) for _ in range(size)]\n        dist.all_gather(parts, mine.detach())\n"
                "        flat = torch.cat(parts)[: sum(sizes)]\n",
                "        flat = mine.detach().new_empty(part * size)\n        dist.all_gather_into_tensor(flat, mine.detach())\n"
                "        flat = flat[: sum(sizes)]\n",
            ),
        ),
    ),
    (
        "parameters that are views of the flat vector, in a step of its own",
        """
def flat_zero_1(parameters, optimizer_class, **options):
    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(p.numel() for p in parameters)
    part = (total + size - 1) // size
    flat, at = torch.zeros(part * size), 0
    for p in parameters:
        flat[at : at + p.numel()] = p.detach().flatten()
        p.data = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    mine = torch.nn.Parameter(flat[rank * part : (rank + 1) * part])
    optimizer = optimizer_class([mine], **options)
    step = optimizer.step

    def flat_step(closure=None):
        gradients, at = torch.zeros_like(flat), 0
        for p in parameters:
            gradients[at : at + p.numel()] = p.grad.flatten() / size
            at += p.numel()
        mine.grad = torch.empty(part)
        dist.reduce_scatter(mine.grad, list(gradients.split(part)))
        loss = step(closure)
        dist.all_gather(list(flat.split(part)), mine.detach().clone())
        return loss

    optimizer.step = flat_step
    return optimizer
""",
    ),
]
