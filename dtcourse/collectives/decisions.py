"""What ranks ask each other in order to decide, where a collective of numbers cannot say it: one door.

Most messages are computed with. Some decide: who raises, who is on a line of the mesh, what comes next and how much of
it. Those are asked here and nowhere else (tests/virtual/test_decisions.py), so that a rank that is traced alone, one
of thousands of which no other is there, can be answered:

    said_by_all   agreement: what each rank says, pickled
    grid          the ranks on the axes of groups
    coming        headers: the forms of what a pipeline's stage gets
    counts_here, counts_from_all
                  how many rows this rank's gate sends to each expert, and how many come
    is_virtual    nobody else is there: no notes in a store are compared, no marks of refusals looked at

On a real group each is a collective, or nothing. A virtual group (backend/virtual.py) has `answers`, and is asked them.
Small reductions (agreement.smallest, on_any_rank, all_equal) need no door: their numbers are real in a virtual run, and
its group answers as if each rank had passed what this one passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None


class Answers:
    """What a virtual run answers: every rank is as this one, and what is not so it has been told.

    coming: message -> the forms of its tensors (pipeline_parallel.headers.Form), where stages pass activations
    counts: (call, rank) -> rows that rank `rank` of the experts' group sends to each of all experts in its call-th
            dispatch, from 0: replayed, or drawn. None: as even as they can be

    Messages and forms are the pipeline's, of which this floor knows nothing.
    """

    def __init__(
        self,
        coming: Callable[[Any], Sequence[Any]] | None = None,
        counts: Callable[[int, int], Sequence[int]] | None = None,
    ) -> None:
        self.coming, self._counts = coming, counts
        self._dispatches = 0
        self._table: list[
            list[int]
        ] = []  # of the dispatch under way: by rank, rows for each expert

    def grid(self, here: int, lines: Sequence[Sequence[int]]) -> Any:
        """To go along one line and then along another adds up, on a mesh whose ranks count axis by axis."""
        if not lines:
            return here
        first, rest = lines[0], lines[1:]
        return [
            self.grid(rank, [[r + rank - here for r in line] for line in rest]) for rank in first
        ]

    def counts_here(self, rows: int, experts: int, rank: int, ranks: int) -> list[int]:
        """This rank's rows for each expert, in a new dispatch. Raises ValueError where they are not `rows` in all."""
        call, self._dispatches = self._dispatches, self._dispatches + 1
        if self._counts is None:
            each, more = divmod(rows, experts)
            self._table = [[each + (e < more) for e in range(experts)]] * ranks
        else:
            self._table = [[*map(int, self._counts(call, r))] for r in range(ranks)]
        mine = self._table[rank]
        if len(mine) != experts or sum(mine) != rows or min(mine) < 0:
            raise ValueError(
                f"counts({call}, {rank}) are of {len(mine)} experts and {sum(mine)} rows together; this rank sends "
                f"{rows} rows to {experts} experts"
            )
        return mine

    def counts_from_all(self, rank: int) -> list[list[int]]:
        """By rank of the group, its rows for each of this rank's experts."""
        each = len(self._table[0]) // len(self._table)
        return [theirs[rank * each : (rank + 1) * each] for theirs in self._table]


def answers_of(group: Group) -> Answers | None:
    """A virtual group's; None where the other ranks can be asked."""
    return getattr(dist.group.WORLD if group is None else group, "answers", None)


def is_virtual(group: Group) -> bool:
    """Whether nobody else is there."""
    return answers_of(group) is not None


def said_by_all(mine: Any, group: Group = None) -> list[Any]:
    """What each rank of the group says, in their order. A collective; on a virtual group, all say the same."""
    size = dist.get_world_size(group)
    if is_virtual(group):
        return [mine] * size
    everyone: list[Any] = [None] * size
    dist.all_gather_object(everyone, mine, group=group)
    return everyone


def grid(groups: Sequence[dist.ProcessGroup]) -> Any:
    """The ranks of the mesh that has these groups as its lines through this rank, as lists in lists, the first group's
    outermost. All of those ranks call it: a few numbers from each.
    """
    here: Any = dist.get_rank()
    answers = answers_of(groups[0])
    if answers is not None:
        return answers.grid(here, [dist.get_process_group_ranks(group) for group in groups])
    for group in reversed(groups):
        here = said_by_all(here, group)
    return here


def coming(message: Any, group: Group) -> list[Any] | None:
    """The forms of what a stage gets; None on a real group: a header says them.

    Raises ValueError on a virtual group that was told of none.
    """
    answers = answers_of(group)
    if answers is None:
        return None
    if answers.coming is None:
        raise ValueError(
            f"this rank gets {message}, and nobody is there to say of what shape: give Answers(coming=...)"
        )
    return list(answers.coming(message))


def counts_here(counts_E: Tensor, rows: int, groups: Sequence[Group]) -> Tensor:
    """This rank's rows for each expert, on the CPU: the gate's own, or what a virtual run is told.

    Raises ValueError on a virtual group for experts given out over two axes.
    """
    answers = answers_of(groups[0])
    if answers is None:
        return counts_E.cpu()
    if len(groups) > 1:
        raise ValueError(
            f"a virtual run is told the rows of experts on one axis; these are on {len(groups)}"
        )
    rank, ranks = dist.get_rank(groups[0]), dist.get_world_size(groups[0])
    return torch.tensor(answers.counts_here(rows, len(counts_E), rank, ranks), dtype=torch.int64)


def counts_from_all(sizes: Tensor, group: Group, device: torch.device) -> Tensor:
    """sizes[r], of every rank r of the group, that are for this rank, on the CPU: one small all-to-all.

    sizes: (ranks, ...), of which [r] are for rank r
    """
    mine = sizes.to(device)
    theirs = torch.empty_like(mine)
    dist.all_to_all_single(theirs, mine, group=group)
    answers = answers_of(group)
    if answers is not None:
        return torch.tensor(answers.counts_from_all(dist.get_rank(group))).view(sizes.shape)
    return theirs.cpu()
