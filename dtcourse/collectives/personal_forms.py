"""The calls in which each rank gets something else, made from an algorithm's steps; see `forms`.

scatter(vector, bounds, out, root, group)           vector only on the root
gather(x, vector, bounds, root, group)              vector only on the root
all_to_all(x, x_bounds, y, y_bounds, group)         block r of x goes to rank r, block r of y comes from it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed import Work

from dtcourse.collectives import checks, p2p
from dtcourse.collectives.chunks import blocks_of, bounds_of, even_bounds, flat, in_place
from dtcourse.collectives.forms import Call, Steps, as_call_of
from dtcourse.collectives.running import run


def scatter(steps: Steps) -> Call:
    """Steps: (vector, bounds, out, root, group)."""

    @as_call_of(steps)
    def scatter(
        tensor: torch.Tensor,
        scatter_list: Sequence[torch.Tensor] | None = None,
        src: int | None = None,
        group: Any = None,
        async_op: bool = False,
        group_src: int | None = None,
        **options: Any,
    ) -> Work | None:
        """Rank r's tensor becomes the root's scatter_list[r]."""
        group, root = checks.resolve(group), checks.root(group, src, group_src, "src")
        checks.tensors("scatter", group, tensor)
        if p2p.rank(group) == root:
            checks.one_for_each("scatter", group, scatter_list, tensor, "scatter_list")

        def job() -> None:
            bounds = even_bounds(tensor.numel() * p2p.size(group), p2p.size(group))
            vector = None
            if scatter_list is not None and p2p.rank(group) == root:
                vector = torch.cat([flat(t) for t in scatter_list])
            with in_place(tensor, read=False) as out:
                steps(vector, bounds, out, root, group, **options)

        agree = checks.signature("scatter", tensor, root=root)
        return run("scatter", group, job, async_op, [tensor], agree)

    return scatter


def gather(steps: Steps) -> Call:
    """Steps: (x, vector, bounds, root, group)."""

    @as_call_of(steps)
    def gather(
        tensor: torch.Tensor,
        gather_list: Sequence[torch.Tensor] | None = None,
        dst: int | None = None,
        group: Any = None,
        async_op: bool = False,
        group_dst: int | None = None,
        **options: Any,
    ) -> Work | None:
        """The root's gather_list[r] becomes rank r's tensor."""
        group, root = checks.resolve(group), checks.root(group, dst, group_dst, "dst")
        checks.tensors("gather", group, tensor)
        if p2p.rank(group) == root:
            checks.one_for_each("gather", group, gather_list, tensor, "gather_list")

        def job() -> None:
            bounds = even_bounds(tensor.numel() * p2p.size(group), p2p.size(group))
            if p2p.rank(group) != root:
                steps(flat(tensor), None, bounds, root, group, **options)
                return
            vector = torch.empty(bounds[-1], dtype=tensor.dtype, device=tensor.device)
            steps(flat(tensor), vector, bounds, root, group, **options)
            for output, block in zip(gather_list or [], blocks_of(vector, bounds), strict=True):
                output.detach().copy_(block.view(output.shape))

        agree = checks.signature("gather", tensor, root=root)
        return run("gather", group, job, async_op, list(gather_list or []), agree)

    return gather


def all_to_all_single(steps: Steps) -> Call:
    """Steps: (x, x_bounds, y, y_bounds, group) with rows of one tensor."""

    @as_call_of(steps)
    def all_to_all_single(
        output: torch.Tensor,
        input: torch.Tensor,  # noqa: A002
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        group: Any = None,
        async_op: bool = False,
        **options: Any,
    ) -> Work | None:
        """Rows (dim 0) of the input to each rank, in rank order; the output has what came from rank 0, 1, ..."""
        group, name = checks.resolve(group), "all_to_all_single"
        checks.tensors(name, group, output, input)
        rows_in = checks.split_sizes(name, group, input, input_split_sizes, "input_split_sizes")
        rows_out = checks.split_sizes(name, group, output, output_split_sizes, "output_split_sizes")
        width = input[0].numel() if input.shape[0] else output[0].numel() if output.shape[0] else 0
        sends, receives = [r * width for r in rows_in], [r * width for r in rows_out]
        if sum(sends) != input.numel() or sum(receives) != output.numel():
            raise ValueError(
                f"{name} on rank {p2p.rank(group)}: input and output differ in more than dim 0: "
                f"{tuple(input.shape)} and {tuple(output.shape)}"
            )

        def job() -> None:
            with in_place(output, read=False) as y:
                steps(flat(input), bounds_of(sends), y, bounds_of(receives), group, **options)

        # A rank that has no rows does not know how wide the others' are: the dtype is what all have in common.
        agree = checks.Signature(f"{name} of {input.dtype}", (sends, receives))
        return run("all_to_all", group, job, async_op, [output], agree)

    return all_to_all_single


def all_to_all(steps: Steps) -> Call:
    """Steps: (x, x_bounds, y, y_bounds, group) with lists of tensors."""

    @as_call_of(steps)
    def all_to_all(
        output_tensor_list: Sequence[torch.Tensor],
        input_tensor_list: Sequence[torch.Tensor],
        group: Any = None,
        async_op: bool = False,
        **options: Any,
    ) -> Work | None:
        """Rank r's output_tensor_list[s] becomes rank s's input_tensor_list[r]; sizes may differ."""
        group, name = checks.resolve(group), "all_to_all"
        outputs, sources = output_tensor_list, input_tensor_list
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
            steps(x, bounds_of(sends), y, bounds_of(receives), group, **options)
            for output, block in zip(outputs, blocks_of(y, bounds_of(receives)), strict=True):
                output.detach().copy_(block.view(output.shape))

        agree = checks.Signature(f"{name} of {sources[0].dtype}", (sends, receives))
        return run("all_to_all", group, job, async_op, list(outputs), agree)

    return all_to_all
