"""torch.distributed's calls around an algorithm's steps: arguments checked, tensors made flat, results put in place.

An algorithm is a function on contiguous 1-D tensors (`ring.all_reduce_steps(x, reduction, group)`). Each function here
turns such steps into the call that torch has: in place where torch works in place, any shape and strides, torch's
names for the root, async_op. They are alike for all algorithms, and say nothing about how data moves.

Steps, by collective (group ranks; `bounds` are the offsets of the ranks' blocks in a vector):

    broadcast(x, root, group)                           x is overwritten but on the root
    reduce(x, root, reduction, group)                   x is overwritten on the root, and only there
    all_reduce(x, reduction, group)                     x is overwritten
    reduce_scatter(vector, bounds, reduction, group)    this rank's block ends reduced; the others are lost
    all_gather(vector, bounds, group)                   this rank's block is there before, all blocks after
    scatter(vector, bounds, out, root, group)           vector only on the root
    gather(x, vector, bounds, root, group)              vector only on the root
    all_to_all(x, x_bounds, y, y_bounds, group)         block r of x goes to rank r, block r of y comes from it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import Work

from dtcourse.collectives import checks, p2p
from dtcourse.collectives.chunks import blocks_of, bounds_of, even_bounds, flat, in_place
from dtcourse.collectives.reduce_ops import name_of, reduction_of
from dtcourse.collectives.running import run

Steps = Callable[..., None]


def broadcast(
    steps: Steps,
    tensor: torch.Tensor,
    src: int | None,
    group: Any,
    async_op: bool,
    group_src: int | None,
) -> Work | None:
    """In place, on every rank but the root."""
    group, root = checks.resolve(group), checks.root(group, src, group_src, "src")
    checks.tensors("broadcast", group, tensor)

    def job() -> None:
        with in_place(tensor, read=p2p.rank(group) == root) as x:
            steps(x, root, group)

    agree = checks.signature("broadcast", tensor, root=root)
    return run("broadcast", group, job, async_op, [tensor], agree)


def reduce(
    steps: Steps,
    tensor: torch.Tensor,
    dst: int | None,
    op: Any,
    group: Any,
    async_op: bool,
    group_dst: int | None,
) -> Work | None:
    """In place on the root; the other ranks' tensors stay as they are."""
    group, root = checks.resolve(group), checks.root(group, dst, group_dst, "dst")
    checks.tensors("reduce", group, tensor)
    reduction = reduction_of(op, tensor, p2p.size(group))

    def job() -> None:
        if p2p.rank(group) == root:
            with in_place(tensor) as x:
                reduction.start(x)
                steps(x, root, reduction, group)
                reduction.finish(x)
        else:
            x = flat(tensor)
            if reduction.factor is not None:
                x = x * reduction.factor
            steps(x, root, reduction, group)

    agree = checks.signature("reduce", tensor, op=name_of(op), root=root)
    return run("reduce", group, job, async_op, [tensor], agree)


def all_reduce(
    steps: Steps, tensor: torch.Tensor, op: Any, group: Any, async_op: bool
) -> Work | None:
    """In place on every rank. The steps call reduction.finish themselves, before the result is handed round."""
    group = checks.resolve(group)
    checks.tensors("all_reduce", group, tensor)
    reduction = reduction_of(op, tensor, p2p.size(group))

    def job() -> None:
        with in_place(tensor) as x:
            reduction.start(x)
            steps(x, reduction, group)

    agree = checks.signature("all_reduce", tensor, op=name_of(op))
    return run("all_reduce", group, job, async_op, [tensor], agree)


def all_gather_single(
    steps: Steps, output: torch.Tensor, source: torch.Tensor, group: Any, async_op: bool
) -> Work | None:
    """All ranks' inputs in one tensor, in rank order."""
    group = checks.resolve(group)
    checks.whole_and_part("all_gather_single", group, output, source)

    def job() -> None:
        bounds = even_bounds(output.numel(), p2p.size(group))
        with in_place(output, read=False) as vector:
            blocks_of(vector, bounds)[p2p.rank(group)].copy_(flat(source))
            steps(vector, bounds, group)

    return run(
        "all_gather", group, job, async_op, [output], checks.signature("all_gather_single", source)
    )


def all_gather(
    steps: Steps, outputs: Sequence[torch.Tensor], source: torch.Tensor, group: Any, async_op: bool
) -> Work | None:
    """All ranks' inputs, each in a tensor of its own."""
    group = checks.resolve(group)
    checks.one_for_each("all_gather", group, outputs, source, "tensor_list")

    def job() -> None:
        bounds = even_bounds(source.numel() * p2p.size(group), p2p.size(group))
        vector = torch.empty(bounds[-1], dtype=source.dtype, device=source.device)
        blocks = blocks_of(vector, bounds)
        blocks[p2p.rank(group)].copy_(flat(source))
        steps(vector, bounds, group)
        for tensor, block in zip(outputs, blocks, strict=True):
            tensor.detach().copy_(block.view(tensor.shape))

    return run(
        "all_gather", group, job, async_op, list(outputs), checks.signature("all_gather", source)
    )


def reduce_scatter_single(
    steps: Steps, output: torch.Tensor, source: torch.Tensor, op: Any, group: Any, async_op: bool
) -> Work | None:
    """The sum of all ranks' inputs, cut into p equal blocks: rank r gets block r. The input stays as it is."""
    group = checks.resolve(group)
    checks.whole_and_part("reduce_scatter_single", group, source, output)
    reduction = reduction_of(op, output, p2p.size(group))

    def job() -> None:
        _reduce_scatter(steps, flat(source).clone(), output, reduction, group)

    agree = checks.signature("reduce_scatter_single", output, op=name_of(op))
    return run("reduce_scatter", group, job, async_op, [output], agree)


def reduce_scatter(
    steps: Steps,
    output: torch.Tensor,
    sources: Sequence[torch.Tensor],
    op: Any,
    group: Any,
    async_op: bool,
) -> Work | None:
    """The same with the blocks in a list: rank r gets the sum of all ranks' sources[r]."""
    group = checks.resolve(group)
    checks.one_for_each("reduce_scatter", group, sources, output, "input_list")
    reduction = reduction_of(op, output, p2p.size(group))

    def job() -> None:
        vector = torch.cat([flat(t) for t in sources])
        _reduce_scatter(steps, vector, output, reduction, group)

    agree = checks.signature("reduce_scatter", output, op=name_of(op))
    return run("reduce_scatter", group, job, async_op, [output], agree)


def _reduce_scatter(
    steps: Steps, vector: torch.Tensor, output: torch.Tensor, reduction: Any, group: Any
) -> None:
    bounds = even_bounds(vector.numel(), p2p.size(group))
    reduction.start(vector)
    steps(vector, bounds, reduction, group)
    mine = blocks_of(vector, bounds)[p2p.rank(group)]
    reduction.finish(mine)
    output.detach().copy_(mine.view(output.shape))


def scatter(
    steps: Steps,
    tensor: torch.Tensor,
    sources: Sequence[torch.Tensor] | None,
    src: int | None,
    group: Any,
    async_op: bool,
    group_src: int | None,
) -> Work | None:
    """Rank r gets the root's sources[r]."""
    group, root = checks.resolve(group), checks.root(group, src, group_src, "src")
    checks.tensors("scatter", group, tensor)
    if p2p.rank(group) == root:
        checks.one_for_each("scatter", group, sources, tensor, "scatter_list")

    def job() -> None:
        bounds = even_bounds(tensor.numel() * p2p.size(group), p2p.size(group))
        vector = (
            torch.cat([flat(t) for t in sources])
            if sources is not None and p2p.rank(group) == root
            else None
        )
        with in_place(tensor, read=False) as out:
            steps(vector, bounds, out, root, group)

    agree = checks.signature("scatter", tensor, root=root)
    return run("scatter", group, job, async_op, [tensor], agree)


def gather(
    steps: Steps,
    tensor: torch.Tensor,
    outputs: Sequence[torch.Tensor] | None,
    dst: int | None,
    group: Any,
    async_op: bool,
    group_dst: int | None,
) -> Work | None:
    """The root's outputs[r] gets rank r's tensor."""
    group, root = checks.resolve(group), checks.root(group, dst, group_dst, "dst")
    checks.tensors("gather", group, tensor)
    if p2p.rank(group) == root:
        checks.one_for_each("gather", group, outputs, tensor, "gather_list")

    def job() -> None:
        bounds = even_bounds(tensor.numel() * p2p.size(group), p2p.size(group))
        if p2p.rank(group) != root:
            steps(flat(tensor), None, bounds, root, group)
            return
        vector = torch.empty(bounds[-1], dtype=tensor.dtype, device=tensor.device)
        steps(flat(tensor), vector, bounds, root, group)
        for output, block in zip(outputs or [], blocks_of(vector, bounds), strict=True):
            output.detach().copy_(block.view(output.shape))

    agree = checks.signature("gather", tensor, root=root)
    return run("gather", group, job, async_op, list(outputs or []), agree)


def all_to_all_single(
    steps: Steps,
    output: torch.Tensor,
    source: torch.Tensor,
    output_split_sizes: Sequence[int] | None,
    input_split_sizes: Sequence[int] | None,
    group: Any,
    async_op: bool,
) -> Work | None:
    """Rows (dim 0) of the input to each rank, in rank order; the output has what came from rank 0, 1, ..."""
    group, name = checks.resolve(group), "all_to_all_single"
    checks.tensors(name, group, output, source)
    rows_in = checks.split_sizes(name, group, source, input_split_sizes, "input_split_sizes")
    rows_out = checks.split_sizes(name, group, output, output_split_sizes, "output_split_sizes")
    width = source[0].numel() if source.shape[0] else output[0].numel() if output.shape[0] else 0
    sends, receives = [r * width for r in rows_in], [r * width for r in rows_out]
    if sum(sends) != source.numel() or sum(receives) != output.numel():
        raise ValueError(
            f"{name} on rank {p2p.rank(group)}: input and output differ in more than dim 0: "
            f"{tuple(source.shape)} and {tuple(output.shape)}"
        )

    def job() -> None:
        with in_place(output, read=False) as y:
            steps(flat(source), bounds_of(sends), y, bounds_of(receives), group)

    # A rank that has no rows does not know how wide the others' are: the dtype is what all have in common.
    agree = checks.Signature(f"{name} of {source.dtype}", (sends, receives))
    return run("all_to_all", group, job, async_op, [output], agree)


def all_to_all(
    steps: Steps,
    outputs: Sequence[torch.Tensor],
    sources: Sequence[torch.Tensor],
    group: Any,
    async_op: bool,
) -> Work | None:
    """sources[r] goes to rank r; outputs[r] is what came from rank r. Sizes may differ."""
    group, name = checks.resolve(group), "all_to_all"
    if len(outputs) != p2p.size(group) or len(sources) != p2p.size(group):
        raise ValueError(
            f"{name} on rank {p2p.rank(group)}: one tensor for each of the {p2p.size(group)} ranks is needed, got "
            f"{len(sources)} to send and {len(outputs)} to receive"
        )
    checks.tensors(name, group, *sources, *outputs)
    sends, receives = [t.numel() for t in sources], [t.numel() for t in outputs]

    def job() -> None:
        x = torch.cat([flat(t) for t in sources])
        y = torch.empty(sum(receives), dtype=x.dtype, device=x.device)
        steps(x, bounds_of(sends), y, bounds_of(receives), group)
        for output, block in zip(outputs, blocks_of(y, bounds_of(receives)), strict=True):
            output.detach().copy_(block.view(output.shape))

    agree = checks.Signature(f"{name} of {sources[0].dtype}", (sends, receives))
    return run("all_to_all", group, job, async_op, list(outputs), agree)


def barrier(steps: Callable[[Any], None], group: Any, async_op: bool) -> Work | None:
    """Returns when every rank has come."""
    group = checks.resolve(group)
    return run("barrier", group, lambda: steps(group), async_op, [], checks.Signature("barrier"))
