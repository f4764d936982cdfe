"""Plausible wrong answers to lesson 16's exercises: (name, words of the sentence that rejects it, code)."""

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

_ZERO_2 = """
def gradients_go_home(model, owner):
    rank, size = dist.get_rank(), dist.get_world_size()

    def send(p):
        p.grad /= size
        dist.reduce(p.grad, dst=owner[p])
        if owner[p] != rank:
            p.grad = None

    for p in owner:
        p.register_post_accumulate_grad_hook(send)
"""

_ZERO_3 = """
class ShardedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, shape):
        ctx.save_for_backward(x, shard)
        ctx.shape = shape
        return x @ whole(shard, shape).T

    @staticmethod
    def backward(ctx, grad_y):
        x, shard = ctx.saved_tensors
        grad_x = grad_y @ whole(shard, ctx.shape)
        size = dist.get_world_size()
        padded = shard.new_zeros(size * len(shard))
        padded[: ctx.shape.numel()] = (grad_y.T @ x / size).flatten()
        grad_shard = torch.empty_like(shard)
        dist.reduce_scatter(grad_shard, list(padded.chunk(size)))
        return grad_x, grad_shard, None


def whole(shard, shape):
    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, shard)
    return torch.cat(parts)[: shape.numel()].view(shape)
"""

_BYTES = """
def bytes_on_ranks(sizes, ranks, stage, weights=2, gradients=2, optimizer=12):
    own = [0] * ranks
    for size in sorted(sizes, reverse=True):
        own[own.index(min(own))] += size
    if stage == 3:
        own = [-(-sum(sizes) // ranks)] * ranks
    whole = [sum(sizes)] * ranks
    held = [
        (weights, own if stage >= 3 else whole),
        (gradients, own if stage >= 2 else whole),
        (optimizer, own if stage >= 1 else whole),
    ]
    return [sum(each * elements[rank] for each, elements in held) for rank in range(ranks)]
"""


def _changed(code: str, old: str, new: str) -> str:
    assert old in code, old
    return code.replace(old, new)


MUTANTS = {
    "bytes_on_ranks": [
        (
            "stage 2 leaves the gradients whole",
            "Which of the three does this stage shard",
            _changed(_BYTES, "stage >= 2", "stage >= 3"),
        ),
        (
            "dealt out in the model's order",
            "In what order are the parameters dealt out",
            _changed(_BYTES, "sorted(sizes, reverse=True)", "sizes"),
        ),
        (
            "even shares for whole parameters",
            "who gets the next one",
            _changed(_BYTES, "if stage == 3:", "if stage >= 1:"),
        ),
        (
            "no padding",
            "All parts are of one size",
            _changed(_BYTES, "-(-sum(sizes) // ranks)", "sum(sizes) // ranks"),
        ),
        (
            "dealt out in turn",
            "who gets the next one",
            _changed(
                _changed(_BYTES, "for size in sorted", "for i, size in enumerate(sorted"),
                "reverse=True):\n        own[own.index(min(own))]",
                "reverse=True)):\n        own[i % ranks]",
            ),
        ),
    ],
    "zero_1": [
        (
            "every rank keeps all states",
            "Which parameters does the optimizer know of",
            _changed(_ZERO_1, " if rank == dist.get_rank()]", "]"),
        ),
        (
            "broadcast from rank 0, whoever owns it",
            "from whom does rank",
            _changed(_ZERO_1, "src=rank", "src=0"),
        ),
        (
            "no spreading",
            "from whom does rank",
            _changed(_ZERO_1, "optimizer.register_step_post_hook(spread)", "pass"),
        ),
        (
            "fails where a rank owns nothing",
            "empty parameter list",
            _changed(_ZERO_1, '[{"params": mine}]', "mine"),
        ),
        (
            "a sum with zeros: twice the bytes",
            "are enough",
            _changed(
                _ZERO_1,
                "            dist.broadcast(p.detach(), src=rank)",
                "            if rank != dist.get_rank():\n                p.detach().zero_()\n"
                "            dist.all_reduce(p.detach())",
            ),
        ),
        (
            "spreads before the update",
            "from whom does rank",
            _changed(_ZERO_1, "register_step_post_hook", "register_step_pre_hook"),
        ),
    ],
    "gradients_go_home": [
        (
            "a sum where the mean belongs",
            "Is it the sum or the mean",
            _changed(_ZERO_2, "        p.grad /= size\n", ""),
        ),
        (
            "to rank 0, whoever owns it",
            "Is it the sum or the mean",
            _changed(_ZERO_2, "dst=owner[p]", "dst=0"),
        ),
        (
            "never freed",
            "Who needs",
            _changed(_ZERO_2, "        if owner[p] != rank:\n            p.grad = None\n", ""),
        ),
        (
            "an all-reduce",
            "which collective brings it to one rank",
            _changed(_ZERO_2, "dist.reduce(p.grad, dst=owner[p])", "dist.all_reduce(p.grad)"),
        ),
        (
            "freed at the end of backward",
            "as they are sent, or at the end",
            """
def gradients_go_home(model, owner):
    rank, size = dist.get_rank(), dist.get_world_size()
    waiting = []

    def send(p):
        waiting.append(p)
        if len(waiting) < len(owner):
            return
        for q in waiting:
            q.grad /= size
            dist.reduce(q.grad, dst=owner[q])
            if owner[q] != rank:
                q.grad = None
        waiting.clear()

    for p in owner:
        p.register_post_accumulate_grad_hook(send)
""",
        ),
        (
            "hooks on frozen parameters",
            "that doesn't require gradient",
            _changed(_ZERO_2, "for p in owner:", "for p in model.parameters():"),
        ),
        (
            "divided on the owner only, after the others have gone",
            "Is it the sum or the mean",
            _changed(
                _ZERO_2,
                "        p.grad /= size\n        dist.reduce",
                "        if owner[p] == rank:\n            p.grad /= size\n        dist.reduce",
            ),
        ),
    ],
    "sharded_linear": [
        (
            "keeps the whole weight for backward",
            "What does save_for_backward keep",
            _changed(
                _changed(
                    _ZERO_3,
                    "        ctx.save_for_backward(x, shard)\n        ctx.shape = shape\n"
                    "        return x @ whole(shard, shape).T",
                    "        weight = whole(shard, shape)\n        ctx.save_for_backward(x, shard, weight)\n"
                    "        ctx.shape = shape\n        return x @ weight.T",
                ),
                "        x, shard = ctx.saved_tensors\n        grad_x = grad_y @ whole(shard, ctx.shape)",
                "        x, shard, weight = ctx.saved_tensors\n        grad_x = grad_y @ weight",
            ),
        ),
        (
            "a sum where the mean belongs",
            "is it the sum over the ranks or their mean",
            _changed(_ZERO_3, "(grad_y.T @ x / size)", "(grad_y.T @ x)"),
        ),
        (
            "an all-reduce, of which a part is kept",
            "leaves each rank with its part of a sum",
            _changed(
                _ZERO_3,
                "        grad_shard = torch.empty_like(shard)\n"
                "        dist.reduce_scatter(grad_shard, list(padded.chunk(size)))\n",
                "        dist.all_reduce(padded)\n"
                "        grad_shard = padded.chunk(size)[dist.get_rank()].clone()\n",
            ),
        ),
        (
            "each rank keeps its own gradient: nothing is summed",
            "Which part does each rank keep",
            _changed(
                _ZERO_3,
                "        grad_shard = torch.empty_like(shard)\n"
                "        dist.reduce_scatter(grad_shard, list(padded.chunk(size)))\n",
                "        grad_shard = (padded * size).chunk(size)[dist.get_rank()].clone()\n",
            ),
        ),
        (
            "the neighbour's part",
            "Which part does each rank keep",
            _changed(_ZERO_3, "list(padded.chunk(size))", "list(padded.chunk(size))[::-1]"),
        ),
        (
            "whatever was in memory as padding",
            "What was in that memory before",
            _changed(
                _ZERO_3,
                "shard.new_zeros(size * len(shard))",
                "shard.new_full((size * len(shard),), 7.0)",
            ),
        ),
    ],
}
