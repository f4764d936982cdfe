"""Answers to sharded_linear: see test_exercises.py."""

from tests.course.edits import changed

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

MUTANTS = [
    (
        "keeps the whole weight for backward",
        "What does save_for_backward keep",
        changed(
            changed(
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
        changed(_ZERO_3, "(grad_y.T @ x / size)", "(grad_y.T @ x)"),
    ),
    (
        "an all-reduce, of which a part is kept",
        "leaves each rank with its part of a sum",
        changed(
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
        changed(
            _ZERO_3,
            "        grad_shard = torch.empty_like(shard)\n"
            "        dist.reduce_scatter(grad_shard, list(padded.chunk(size)))\n",
            "        grad_shard = (padded * size).chunk(size)[dist.get_rank()].clone()\n",
        ),
    ),
    (
        "the neighbour's part",
        "Which part does each rank keep",
        changed(_ZERO_3, "list(padded.chunk(size))", "list(padded.chunk(size))[::-1]"),
    ),
    (
        "whatever was in memory as padding",
        "What was in that memory before",
        changed(
            _ZERO_3,
            "shard.new_zeros(size * len(shard))",
            "shard.new_full((size * len(shard),), 7.0)",
        ),
    ),
]

NOTHING = [
    (
        "nothing but zeros",
        """
class ShardedLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, shape):
        ctx.save_for_backward(x, shard)
        return x.new_zeros(len(x), shape[0])

    @staticmethod
    def backward(ctx, grad_y):
        x, shard = ctx.saved_tensors
        return torch.zeros_like(x), torch.zeros_like(shard), None
""",
    ),
]

ACCEPTED = [
    (
        "the forms with one tensor",
        (
            (
                "        dist.reduce_scatter(grad_shard, list(padded.chunk(size)))\n",
                "        dist.reduce_scatter_tensor(grad_shard, padded)\n",
            ),
            (
                "    parts = [torch.empty_like(shard) for _ in range(dist.get_world_size())]\n    dist.all_gather(parts, shard)\n"
                "    return torch.cat(parts)[",
                "    flat = shard.new_empty(dist.get_world_size() * len(shard))\n    dist.all_gather_into_tensor(flat, shard)\n"
                "    return flat[",
            ),
        ),
    ),
    (
        "divides what has arrived",
        (
            ("(grad_y.T @ x / size)", "(grad_y.T @ x)"),
            (
                "        return grad_x, grad_shard, None",
                "        return grad_x, grad_shard / size, None",
            ),
        ),
    ),
]
