"""Answers to average_uneven: see test_exercises.py."""

_UNEVEN = """
def average_uneven(model, samples):
    import torch
    import torch.distributed as dist
    from torch.nn.utils import parameters_to_vector, vector_to_parameters
    parameters = [p for p in model.parameters() if p.requires_grad]
    for p in parameters:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
    gradients = [p.grad for p in parameters]
    flat = parameters_to_vector(gradients) * samples
    flat = torch.cat([flat, flat.new_tensor([samples])])
    dist.all_reduce(flat)
    vector_to_parameters(flat[:-1] / flat[-1], gradients)
"""

MUTANTS = [
    (
        "the mean of the ranks, unweighted",
        "count more than one on a rank with many",
        """
def average_uneven(model, samples):
    import torch
    import torch.distributed as dist
    from torch.nn.utils import parameters_to_vector, vector_to_parameters
    gradients = []
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
            gradients.append(p.grad)
    flat = parameters_to_vector(gradients)
    dist.all_reduce(flat)
    vector_to_parameters(flat / dist.get_world_size(), gradients)
""",
    ),
    (
        "weights, but never divides",
        "what should the sum be divided by",
        _UNEVEN.replace("flat[:-1] / flat[-1]", "flat[:-1]"),
    ),
    (
        "divides by its own number of images",
        "what should the sum be divided by",
        _UNEVEN.replace("flat[:-1] / flat[-1]", "flat[:-1] / max(samples, 1)"),
    ),
    (
        "a rank without images stays at home",
        "waiting",
        _UNEVEN.replace(
            "    parameters = [", "    if samples == 0:\n        return\n    parameters = ["
        ),
    ),
    (
        "one collective for each parameter",
        "travel in one vector",
        """
def average_uneven(model, samples):
    import torch
    import torch.distributed as dist
    total = torch.tensor(float(samples))
    dist.all_reduce(total)
    for p in model.parameters():
        if p.requires_grad:
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad * samples
            dist.all_reduce(p.grad)
            p.grad /= total
""",
    ),
    (
        "gives frozen parameters a gradient",
        "frozen",
        _UNEVEN.replace(" if p.requires_grad]", "]"),
    ),
]

NOTHING = [
    (
        "leaves the gradients alone",
        """
def average_uneven(model, samples):
    pass
""",
    ),
]

ACCEPTED = [
    (
        "the number of images first, in 32 bits",
        """
def average_uneven(model, samples):
    total = torch.tensor(float(samples))
    dist.all_reduce(total)
    trained = [p for p in model.parameters() if p.requires_grad]
    scaled = [torch.zeros_like(p) if p.grad is None else p.grad * (samples / total) for p in trained]
    flat = torch.cat([g.flatten() for g in scaled])
    dist.all_reduce(flat)
    for p, part in zip(trained, flat.split([p.numel() for p in trained])):
        p.grad = part.view_as(p)
""",
    ),
    (
        "a reduce-scatter and an all-gather",
        """
def average_uneven(model, samples):
    size = dist.get_world_size()
    trained = [p for p in model.parameters() if p.requires_grad]
    own = [torch.zeros_like(p) if p.grad is None else samples * p.grad for p in trained]
    flat = torch.cat([*(g.flatten() for g in own), own[0].new_tensor([samples])])
    flat = torch.cat([flat, flat.new_zeros(-len(flat) % size)])
    part = torch.empty_like(flat[: len(flat) // size])
    dist.reduce_scatter(part, list(flat.chunk(size)))
    dist.all_gather(list(flat.chunk(size)), part)
    start = 0
    for p in trained:
        p.grad = flat[start : start + p.numel()].view_as(p).clone()
        start += p.numel()
    for p in trained:
        p.grad /= flat[start]
""",
    ),
]
