"""Rows and columns."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.course.judging.framework import CheckFailed

GRID = Exercise(
    "grid_groups",
    lesson="02",
    title="Rows and columns",
    takes=("grid_groups",),
    target="1 row and 1 column for every rank on grids of 2 x 2, 2 x 3, 3 x 2 and 1 x 4",
    forbidden=(
        "torch.distributed.init_device_mesh",
        "torch.distributed.device_mesh",
        "torch.distributed.DeviceMesh",
        "torch.distributed.new_subgroups",
        "torch.distributed.new_subgroups_by_enumeration",
        "torch.distributed.split_group",
    ),
)


def _grid(grid_groups: Any, columns: int) -> Any:
    """The members of both groups, and the sum over each.
    All ranks' calls of new_group are compared as they are made.
    """
    import torch.distributed as dist

    new_group, world_size = dist.new_group, dist.get_world_size()

    def watched(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("use_local_synchronization"):
            asked: list[Any] = [None] * world_size
            dist.all_gather_object(asked, list(range(world_size) if ranks is None else ranks))
            for rank, other in enumerate(asked):
                if other != asked[0]:
                    raise CheckFailed(
                        f"With {world_size} ranks and {columns} columns, rank 0 calls new_group({asked[0]}) while "
                        f"rank {rank} calls new_group({other}). Every rank has to call it for every group, in the "
                        "same order, its own or not."
                    )
        return new_group(ranks, *args, **kwargs)

    def ready_made(*args: Any, **kwargs: Any) -> Any:
        raise CheckFailed(
            "Your groups come from a DeviceMesh, which makes all of them by itself; this exercise asks for "
            "dist.new_group. Which groups does a grid have, and in which order does every rank make them?"
        )

    with (
        mock.patch.object(dist, "new_group", watched),
        mock.patch("torch.distributed.device_mesh.DeviceMesh.__init__", ready_made),
    ):
        groups = tuple(grid_groups(columns))
    if len(groups) != 2 or any(dist.get_rank(group) < 0 for group in groups if group is not None):
        raise CheckFailed(
            f"With {world_size} ranks and {columns} columns, rank {dist.get_rank()} should get two groups that it "
            "is a member of: its row, then its column."
        )
    members = [list(dist.get_process_group_ranks(group)) for group in groups]
    everyone: list[Any] = [None] * world_size
    dist.all_gather_object(everyone, members)
    sums = [0, 0]
    if _agree(everyone):
        for axis, group in enumerate(groups):
            total = torch.tensor([10 ** dist.get_rank()])
            dist.all_reduce(total, group=group)
            sums[axis] = int(total)
    return {"members": members, "sums": sums}


def _agree(everyone: list[list[list[int]]]) -> bool:
    """Whether all ranks of each group name the same members: only then does a sum over it come to an end."""
    return all(
        everyone[peer][axis] == mine[axis]
        for mine in everyone
        for axis in (0, 1)
        for peer in mine[axis]
    )


@GRID.check("square grids: my row, then my column", points=2)
def check_square(answer: Answer) -> None:
    """2 x 2."""
    _check_grid(answer, 2, 2)


@GRID.check("grids that are not square", points=3)
def check_oblong(answer: Answer) -> None:
    """2 x 3, 3 x 2, 1 x 4."""
    for rows, columns in ((2, 3), (3, 2), (1, 4)):
        _check_grid(answer, rows, columns)


def _check_grid(answer: Answer, rows: int, columns: int) -> None:
    run = answer.run(_grid, rows * columns, columns, timeout=8)
    for rank in range(rows * columns):
        row, column = divmod(rank, columns)
        right = [
            [row * columns + c for c in range(columns)],
            [r * columns + column for r in range(rows)],
        ]
        for name, expected, members, total in zip(
            ("row", "column"), right, run[rank]["members"], run[rank]["sums"], strict=True
        ):
            swapped = (
                " Is that its column? The row comes first."
                if name == "row" and sorted(members) == right[1]
                else ""
            )
            require(
                sorted(members) == expected,
                f"on a grid of {rows} x {columns}, rank {rank} stands in row {row}, column {column}: the ranks of "
                f"its {name} are {expected}; got {members}."
                + (swapped or " Ranks are placed row by row: which number stands one row below?"),
            )
            require(
                total == sum(10**r for r in expected),
                f"on a grid of {rows} x {columns}, the group of rank {rank}'s {name} does not reach all of {expected}.",
            )


def _unfilled(grid_groups: Any, columns: int) -> str:
    try:
        grid_groups(columns)
    except ValueError as error:
        return f"ValueError: {error}"
    return "returned"


@GRID.check(
    "a grid that the ranks do not fill is refused, with the numbers",
    points=3,
    needs=("check_square",),
)
def check_unfilled(answer: Answer) -> None:
    """5 ranks, 2 columns; 3 ranks, 4 columns."""
    for world_size, columns in ((5, 2), (3, 4)):
        run = answer.run(_unfilled, world_size, columns, timeout=8)
        for said in run:
            require(
                said.startswith("ValueError"),
                f"{world_size} ranks cannot fill rows of {columns}. Your function made a grid all the same; a "
                "ValueError would say it at once, on every rank, before any group is made.",
            )
            require(
                str(world_size) in said and str(columns) in said,
                f"the message of your ValueError is {said.partition(': ')[2]!r}; name the number of ranks "
                f"({world_size}) and of columns ({columns}), so that its reader need not look for them.",
            )
