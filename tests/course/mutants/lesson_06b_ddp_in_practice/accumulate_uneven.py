"""Answers to accumulate_uneven: see test_exercises.py."""

MUTANTS = [
    (
        "averages every time",
        "which forwards and which backwards",
        """
def accumulate(model, micro_batches, total):
    for x, y in micro_batches:
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
        (loss * dist.get_world_size() / total).backward()
""",
    ),
    (
        "forward outside no_sync",
        "DDP decides in *forward*",
        """
def accumulate(model, micro_batches, total):
    for i, (x, y) in enumerate(micro_batches):
        loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
        with nullcontext() if i == len(micro_batches) - 1 else model.no_sync():
            (loss * dist.get_world_size() / total).backward()
""",
    ),
    (
        "never averages",
        "No gradient was averaged",
        """
def accumulate(model, micro_batches, total):
    with model.no_sync():
        for x, y in micro_batches:
            loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
            (loss * dist.get_world_size() / total).backward()
""",
    ),
    (
        "forgets that DDP divides",
        "what is left to you",
        """
def accumulate(model, micro_batches, total):
    for i, (x, y) in enumerate(micro_batches):
        with nullcontext() if i == len(micro_batches) - 1 else model.no_sync():
            (nn.functional.cross_entropy(model(x), y, reduction="sum") / total).backward()
""",
    ),
    (
        "a mean of means",
        "what does a micro-batch of 1 weigh",
        """
def accumulate(model, micro_batches, total):
    for i, (x, y) in enumerate(micro_batches):
        with nullcontext() if i == len(micro_batches) - 1 else model.no_sync():
            (nn.functional.cross_entropy(model(x), y) / len(micro_batches)).backward()
""",
    ),
    (
        "one large batch",
        "A batch that fits needs no accumulation",
        """
def accumulate(model, micro_batches, total):
    x, y = (torch.cat([part[i] for part in micro_batches]) for i in (0, 1))
    loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
    (loss * dist.get_world_size() / total).backward()
""",
    ),
]

NOTHING = [
    (
        "each one by itself",
        """
def accumulate(model, micro_batches, total):
    for x, y in micro_batches:
        nn.functional.cross_entropy(model(x), y)
""",
    ),
]

ACCEPTED = [
    (
        "the mean of a micro-batch, times its samples",
        (
            (
                'loss = nn.functional.cross_entropy(model(x), y, reduction="sum")',
                "loss = nn.functional.cross_entropy(model(x), y) * len(y)",
            ),
        ),
    ),
    (
        "on the module inside, and one all-reduce by hand",
        """
def accumulate(model, micro_batches, total):
    inner = model.module
    for x, y in micro_batches:
        (nn.functional.cross_entropy(inner(x), y, reduction="sum") / total).backward()
    trained = [p for p in inner.parameters() if p.requires_grad]
    flat = torch.cat([p.grad.flatten() for p in trained])
    dist.all_reduce(flat)
    for p, part in zip(trained, flat.split([p.numel() for p in trained])):
        p.grad.copy_(part.view_as(p))
""",
    ),
]
