"""torch.distributed's calls, made from an algorithm's steps: arguments checked, tensors
made flat, results put in place.

An algorithm is a function on contiguous 1-D tensors. Each function here turns such steps into the call that torch has:

    all_reduce = forms.all_reduce(all_reduce_steps)        # all_reduce(tensor, op=SUM, group=None, async_op=False)

with torch's arguments and defaults, in place where torch works in place, any shape and strides, torch's names for the
root, async_op, and what the steps take besides (chunk_bytes=...) as keywords. The calls are alike for all algorithms,
and say nothing about how data moves: `show(ring.all_reduce)` shows the steps.

Steps, by collective (group ranks; `bounds` are the offsets of the ranks' blocks in a vector):

    broadcast(x, root, group)                           x is overwritten but on the root
    reduce(x, root, reduction, group)                   x is overwritten on the root, and only there
    all_reduce(x, reduction, group)                     x is overwritten
    reduce_scatter(vector, bounds, reduction, group)    this rank's block ends reduced; the others are lost
    all_gather(vector, bounds, group)                   this rank's block is there before, all blocks after
    barrier(group)

Steps between one rank and each of the others, or all pairs, are in `personal_forms`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed import ReduceOp, Work

from dtcourse.collectives import checks, p2p
from dtcourse.collectives.chunks import blocks_of, even_bounds, flat, in_place
from dtcourse.collectives.reduce_ops import reduction_of
from dtcourse.collectives.running import run

Steps = Callable[..., None]
Call = Callable[..., Work | None]
SUM: Any = ReduceOp.SUM


def as_call_of(steps: Steps) -> Callable[[Call], Call]:
    """Makes a call the algorithm's own: its module and name,
    and the steps' options as keywords behind torch's arguments.
    """

    def mark(call: Call) -> Call:
        theirs = list(inspect.signature(call).parameters.values())[:-1]  # without **options
        options = [
            parameter.replace(kind=parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(steps).parameters.values()
            if parameter.default is not parameter.empty
        ]
        signature = inspect.Signature([*theirs, *options])
        name = steps.__name__.removesuffix("_steps")
        if call.__name__.endswith("_single"):
            name += "_single"

        def made(*args: Any, **keywords: Any) -> Work | None:
            if unknown := keywords.keys() - signature.parameters.keys():
                raise TypeError(f"{name}() has no argument {', '.join(unknown)}: {name}{signature}")
            return call(*args, **keywords)

        made.__doc__ = call.__doc__
        made.__name__ = made.__qualname__ = name  # pickled by name: the algorithm's module has it
        made.__module__ = steps.__module__
        made.__signature__ = signature  # type: ignore[attr-defined]
        made.__wrapped__ = steps  # type: ignore[attr-defined]  # what show() shows
        return made

    return mark


def broadcast(steps: Steps) -> Call:
    """Steps: (x, root, group)."""

    @as_call_of(steps)
    def broadcast(
        tensor: torch.Tensor,
        src: int | None = None,
        group: Any = None,
        async_op: bool = False,
        group_src: int | None = None,
        **options: Any,
    ) -> Work | None:
        """Copies the root's tensor to all ranks. src: global rank; group_src: group rank."""
        group, root = checks.resolve(group), checks.root(group, src, group_src, "src")
        checks.tensors("broadcast", group, tensor)

        def job() -> None:
            with in_place(tensor, read=p2p.rank(group) == root) as x:
                steps(x, root, group, **options)

        agree = checks.signature("broadcast", tensor, root=root)
        return run("broadcast", group, job, async_op, [tensor], agree)

    return broadcast


def reduce(steps: Steps) -> Call:
    """Steps: (x, root, reduction, group)."""

    @as_call_of(steps)
    def reduce(
        tensor: torch.Tensor,
        dst: int | None = None,
        op: Any = SUM,
        group: Any = None,
        async_op: bool = False,
        group_dst: int | None = None,
        **options: Any,
    ) -> Work | None:
        """Combines all ranks' tensors into the root's; the others stay as they are."""
        group, root = checks.resolve(group), checks.root(group, dst, group_dst, "dst")
        checks.tensors("reduce", group, tensor)
        reduction = reduction_of(op, tensor, p2p.size(group))

        def job() -> None:
            if p2p.rank(group) == root:
                with in_place(tensor) as x:
                    reduction.start(x)
                    steps(x, root, reduction, group, **options)
                    reduction.finish(x)
            else:
                x = flat(tensor)
                if reduction.factor is not None:
                    x = x * reduction.factor
                steps(x, root, reduction, group, **options)

        agree = checks.signature("reduce", tensor, op=reduction.name, root=root)
        return run("reduce", group, job, async_op, [tensor], agree)

    return reduce


def all_reduce(steps: Steps) -> Call:
    """Steps: (x, reduction, group). The steps call reduction.finish themselves, before the result is
    handed round.
    """

    @as_call_of(steps)
    def all_reduce(
        tensor: torch.Tensor,
        op: Any = SUM,
        group: Any = None,
        async_op: bool = False,
        **options: Any,
    ) -> Work | None:
        """Combines all ranks' tensors, in place on every rank."""
        group = checks.resolve(group)
        checks.tensors("all_reduce", group, tensor)
        reduction = reduction_of(op, tensor, p2p.size(group))

        def job() -> None:
            with in_place(tensor) as x:
                reduction.start(x)
                steps(x, reduction, group, **options)

        agree = checks.signature("all_reduce", tensor, op=reduction.name)
        return run("all_reduce", group, job, async_op, [tensor], agree)

    return all_reduce


def all_gather_single(steps: Steps) -> Call:
    """Steps: (vector, bounds, group) with all inputs in one tensor."""

    @as_call_of(steps)
    def all_gather_single(
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any = None,
        async_op: bool = False,
        **options: Any,
    ) -> Work | None:
        """The output (p times the input's elements) becomes all inputs in rank order."""
        group = checks.resolve(group)
        checks.whole_and_part("all_gather_single", group, output_tensor, input_tensor)

        def job() -> None:
            bounds = even_bounds(output_tensor.numel(), p2p.size(group))
            with in_place(output_tensor, read=False) as vector:
                blocks_of(vector, bounds)[p2p.rank(group)].copy_(flat(input_tensor))
                steps(vector, bounds, group, **options)
            # gloo copies into it, which counts
            torch.autograd.graph.increment_version(output_tensor)

        agree = checks.signature("all_gather_single", input_tensor)
        return run("all_gather", group, job, async_op, [output_tensor], agree)

    return all_gather_single


def all_gather(steps: Steps) -> Call:
    """Steps: (vector, bounds, group) with each input in a tensor of its own."""

    @as_call_of(steps)
    def all_gather(
        tensor_list: Sequence[torch.Tensor],
        tensor: torch.Tensor,
        group: Any = None,
        async_op: bool = False,
        **options: Any,
    ) -> Work | None:
        """tensor_list[r] becomes rank r's tensor, on all ranks."""
        group = checks.resolve(group)
        checks.one_for_each("all_gather", group, tensor_list, tensor, "tensor_list")

        def job() -> None:
            bounds = even_bounds(tensor.numel() * p2p.size(group), p2p.size(group))
            vector = torch.empty(bounds[-1], dtype=tensor.dtype, device=tensor.device)
            blocks = blocks_of(vector, bounds)
            blocks[p2p.rank(group)].copy_(flat(tensor))
            steps(vector, bounds, group, **options)
            for output, block in zip(tensor_list, blocks, strict=True):
                output.detach().copy_(block.view(output.shape))

        agree = checks.signature("all_gather", tensor)
        return run("all_gather", group, job, async_op, list(tensor_list), agree)

    return all_gather


def reduce_scatter_single(steps: Steps) -> Call:
    """Steps: (vector, bounds, reduction, group) with all blocks in one tensor."""

    @as_call_of(steps)
    def reduce_scatter_single(
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        op: Any = SUM,
        group: Any = None,
        async_op: bool = False,
        **options: Any,
    ) -> Work | None:
        """Rank r's output becomes block r (of p) of all ranks' inputs, combined. The input stays as it is."""
        group = checks.resolve(group)
        checks.whole_and_part("reduce_scatter_single", group, input, output)
        reduction = reduction_of(op, output, p2p.size(group))

        def job() -> None:
            _reduce_scatter(steps, flat(input).clone(), output, reduction, group, options)

        agree = checks.signature("reduce_scatter_single", output, op=reduction.name)
        return run("reduce_scatter", group, job, async_op, [output], agree)

    return reduce_scatter_single


def reduce_scatter(steps: Steps) -> Call:
    """Steps: (vector, bounds, reduction, group) with the blocks in a list."""

    @as_call_of(steps)
    def reduce_scatter(
        output: torch.Tensor,
        input_list: Sequence[torch.Tensor],
        op: Any = SUM,
        group: Any = None,
        async_op: bool = False,
        **options: Any,
    ) -> Work | None:
        """Rank r's output becomes all ranks' input_list[r], combined."""
        group = checks.resolve(group)
        checks.one_for_each("reduce_scatter", group, input_list, output, "input_list")
        reduction = reduction_of(op, output, p2p.size(group))

        def job() -> None:
            vector = torch.cat([flat(t) for t in input_list])
            _reduce_scatter(steps, vector, output, reduction, group, options)

        agree = checks.signature("reduce_scatter", output, op=reduction.name)
        return run("reduce_scatter", group, job, async_op, [output], agree)

    return reduce_scatter


def _reduce_scatter(
    steps: Steps,
    vector: torch.Tensor,
    output: torch.Tensor,
    reduction: Any,
    group: Any,
    options: dict[str, Any],
) -> None:
    bounds = even_bounds(vector.numel(), p2p.size(group))
    reduction.start(vector)
    steps(vector, bounds, reduction, group, **options)
    mine = blocks_of(vector, bounds)[p2p.rank(group)]
    reduction.finish(mine)
    output.detach().copy_(mine.view(output.shape))


def barrier(steps: Steps) -> Call:
    """Steps: (group)."""

    @as_call_of(steps)
    def barrier(group: Any = None, async_op: bool = False, **options: Any) -> Work | None:
        """Returns when every rank of the group has come."""
        group = checks.resolve(group)
        agree = checks.Signature("barrier")
        return run("barrier", group, lambda: steps(group, **options), async_op, [], agree)

    return barrier
