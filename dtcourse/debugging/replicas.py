"""Do ranks that ought to hold the same still hold it, bit for bit? On a schedule, and over any placement.

    watch = ReplicaWatch(model, optimizer, every=100)
    for batch in loader:
        ...
        optimizer.step()
        watch.step()                  # ReplicasDrifted names the first tensor and the rank, on all ranks

Parameters, buffers and what the optimizer keeps of them (its slots, and the options it would use) are summed up to 64
bits each (parameters/checksum.py). Which pieces are to be the same say the placements (parameters/placement.py): a
slice of tensor parallelism is compared with the same slice of the other replicas, a shard with the same shard, a
stage's layers with that stage's elsewhere, and never with another piece. Where three or more have a piece, most of them
are taken to be right.

Not compared are running statistics of a batch normalisation that is each rank's own: under DistributedDataParallel the
next forward replaces them by rank 0's (statistics=True compares them too).

Costs: one pass over what this rank holds, then 16 bytes and 8 bytes a tensor from each rank to each other one. Names
are sent once, and again when they have changed. Measured on 2 busy cores, 4.2 million parameters with Adam (50 MB): a
look takes 60 ms of processor time and a step of 128 samples 120 ms, so a look every 100 steps is 0.5% of them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.debugging.held import Held, sums
from dtcourse.debugging.sentences import ranks_in_words
from dtcourse.parameters.cuts import Group
from dtcourse.plural import plural
from dtcourse.torch_private import device_of_messages


@dataclass(frozen=True)
class Drift:
    """The first tensor that is not the same on all ranks that hold it. False where there is none.

    tensor:  its name, such as "head.weight" or "exp_avg of head.weight"
    ranks:   those that differ from most; all that hold it where there is no majority
    others:  those that are alike; empty where there is no majority
    also:    names of the other tensors that differ
    sentence: all of that
    """

    tensor: str = ""
    ranks: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    also: list[str] = field(default_factory=list)
    sentence: str = ""

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __str__(self) -> str:
        return self.sentence or "All replicas are the same."


class ReplicasDrifted(RuntimeError):
    """Raised on every rank by ReplicaWatch. .drift: the Drift; .step: after which it was seen."""

    def __init__(self, drift: Drift, step: int, since: str) -> None:
        self.drift, self.step = drift, step
        super().__init__(f"after step {step}{since}: {drift.sentence}")


class ReplicaWatch:
    """Compares the replicas after every so many steps, and once before the first.

    every: steps between two looks. All ranks call step() equally often: it is a collective where it looks. So it is
           no hook of the optimizer: a rank that has left a step out would look at another moment
    the others: compare_replicas's

    Raises ValueError where `every` is no number of steps.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        every: int = 100,
        group: Group = None,
        statistics: bool = False,
    ) -> None:
        if not (isinstance(every, int) and every > 0):
            raise ValueError(
                f"every is how many steps lie between two looks, 1 or more; got {every!r}"
            )
        self.every, self.steps = every, 0
        self._comparison = _Comparison(model, optimizer, group, statistics)
        self._look(", before any")

    def step(self) -> None:
        """A step is over. Raises ReplicasDrifted on all ranks where replicas differ."""
        self.steps += 1
        if self.steps % self.every == 0:
            self._look(f", and was the same after step {self.steps - self.every}")

    def _look(self, since: str) -> None:
        drift = self._comparison.look()
        if drift:
            raise ReplicasDrifted(drift, self.steps, since)


def compare_replicas(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    group: Group = None,
    statistics: bool = False,
) -> Drift:
    """The first tensor in which ranks that hold the same piece differ, the same on all ranks. A collective.

    optimizer:  its slots and options are compared too
    group:      the ranks to compare; where each rank's model has names of its own, those that hold the same
    statistics: compare the running statistics of batch normalisations that are not synchronised as well
    """
    return _Comparison(model, optimizer, group, statistics).look()


class _Comparison:
    """What was asked for, and the names that all ranks have told last time."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        group: Group,
        statistics: bool,
    ) -> None:
        self.model, self.optimizer, self.group = model, optimizer, group
        self.statistics = statistics
        self._told: list[Held] | None = None
        self._everyones: list[list[Held]] = []

    def look(self) -> Drift:
        """Compares now."""
        here = device_of_messages(self.group)
        mine = list(sums(self.model, self.optimizer, self.statistics))
        held = [one for one, _ in mine]
        both = torch.tensor([len(held), held != self._told], dtype=torch.int64, device=here)
        dist.all_reduce(both, op=dist.ReduceOp.MAX, group=self.group)
        most, changed = both.tolist()
        ranks = dist.get_process_group_ranks(self.group)
        if changed:
            self._told, self._everyones = held, [[] for _ in ranks]
            dist.all_gather_object(self._everyones, held, group=self.group)
        if most == 0:
            return Drift()
        row = torch.zeros(most, dtype=torch.int64, device=here)
        if mine:
            row[: len(mine)] = torch.stack([value.to(here) for _, value in mine])
        everyone = [torch.empty_like(row) for _ in ranks]
        dist.all_gather(everyone, row, group=self.group)
        found: dict[tuple[str, tuple[Any, ...]], dict[int, tuple[str, int]]] = {}
        for rank, theirs, values in zip(ranks, self._everyones, everyone, strict=True):
            for one, value in zip(theirs, values.tolist(), strict=False):
                found.setdefault((one.name, one.piece), {})[rank] = (one.form, value)
        return first_drift(found)


def first_drift(found: dict[tuple[str, tuple[Any, ...]], dict[int, tuple[str, int]]]) -> Drift:
    """Of tensors, by name and piece, each rank's form and sum: the first that is not the same on all of them."""
    differing = {key: of for key, of in found.items() if len(set(of.values())) > 1}
    if not differing:
        return Drift()
    (name, piece), of = next(iter(differing.items()))
    (usual, most), (_, next_most) = Counter(of.values()).most_common(2)
    odd = sorted(rank for rank, value in of.items() if most == next_most or value != usual)
    others = sorted(of.keys() - set(odd))
    where = f" ({', '.join(piece)})" if piece else ""
    if others:
        said = f"{name}{where} is other on {ranks_in_words(odd)} than on {ranks_in_words(others)}"
    else:
        said = f"{ranks_in_words(odd)} differ in {name}{where}, and no majority says who is right"
    forms = sorted({form for form, _ in of.values()})
    if len(forms) > 1:
        said += f" ({' and '.join(forms)})"
    also = [other for other, _ in differing if other != name]
    if also:
        said += f"; {plural(len(also), 'more tensor differs', 'more tensors differ')}, the next {also[0]}"
    return Drift(name, odd, others, list(dict.fromkeys(also)), said + ".")
