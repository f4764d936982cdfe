"""One rank of any number, traced without the others and without memory: what it calls, computes and keeps.

    found, calls = run_rank(step, rank=5, ranks=1024)       # step() as launch(step, 1024) would run it on rank 5

The function is the one that launch takes. Inside, its tensors are shapes (torch_private.without_values) and its groups
are virtual (collectives/backend/virtual.py): a step costs tens of microseconds an operator, and no bytes, whatever the
size of model and cluster. What it is about is measured by `measure`, on a real rank and on a traced one alike, so the
two are one count, and differ only where an operator, or a decision, does.

    def step():
        ...                                                  # build, parallelize, a first step
        return measure(one_step, model, optimizer, batch)    # FLOPs, bytes by axis, peak memory

What is traced is the CPU's step: its kernels, what they keep, and the reads of values that a GPU is spared. A step that
depends on values (capacity of experts, expert choice, a loss scaler) is refused with a sentence.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import nn

from dtcourse import device, torch_private
from dtcourse.collectives import decisions, traffic
from dtcourse.collectives.backend import virtual
from dtcourse.collectives.backend.virtual import Call
from dtcourse.collectives.counted import RankRecord, Traffic
from dtcourse.profiling.memory_tracker import MemoryTracker
from dtcourse.profiling.operators import CountOperators

T = TypeVar("T")


@dataclass(frozen=True)
class Measured:
    """What one rank did in a stretch of its program: plain data.

    flops:      of matrix products, convolutions and attention;  recomputed: those of them that were done before
    record:     messages and calls; `traffic` has every sum over them
    peak:       bytes that tensors hold at most, and of what at that moment; None where they are not known
    """

    flops: int
    recomputed: int
    record: RankRecord = field(repr=False)
    peak: tuple[int, dict[str, int]] | None = None

    @property
    def peak_bytes(self) -> int:
        """Live at most, of what tensors hold. Raises ValueError for sharded parameters on a traced rank."""
        return self._known()[0]

    @property
    def by_category(self) -> dict[str, int]:
        """What the peak is made of: parameters, gradients, activations, ... Raises ValueError as peak_bytes does."""
        return self._known()[1]

    def _known(self) -> tuple[int, dict[str, int]]:
        if self.peak is None:
            raise ValueError(
                "the peak memory of a traced rank with fully sharded parameters is not known: it has come out 5 to 15 "
                "KB above a real rank's. Measure it on real ranks: launch(..., record=True). Bytes sent and FLOPs hold"
            )
        return self.peak

    @property
    def traffic(self) -> Traffic:
        """What was sent, by axis and operation."""
        return Traffic.from_ranks([self.record])


def measure(
    step: Callable[[], Any],
    model: nn.Module | Iterable[nn.Module],
    optimizer: torch.optim.Optimizer | None = None,
    inputs: Iterable[torch.Tensor] = (),
) -> Measured:
    """Runs `step` once and says what this rank did in it.

    model, optimizer, inputs: as MemoryTracker's: what is counted from the start, and as what

    A real rank's collectives are counted where its group is a counted one: launch(..., record=True).
    """
    models = [model] if isinstance(model, nn.Module) else list(model)
    traced = decisions.is_virtual(None)
    counter = CountOperators(fakes=traced)
    with _no_collector(), traffic.counting() as sent, counter:
        with MemoryTracker(models, optimizer, inputs) as tracker:
            step()
    counted, peak = counter.counted, tracker.peak
    known = None if traced and _is_sharded(models) else (peak.bytes, dict(peak.by_category))
    return Measured(counted.flops, counted.recomputed, sent.record(), known)


def _is_sharded(models: Iterable[nn.Module]) -> bool:
    """Whether a parameter is a part of one, by what dtcourse.sharding notes on it (GatheredParameters.mark)."""
    return any(hasattr(p, "hooks_on_whole") for model in models for p in model.parameters())


@contextmanager
def _no_collector() -> Iterator[None]:
    """What lies in a cycle would be freed at another moment in each run, and the peak be another one."""
    before = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def run_rank(
    function: Callable[..., T],
    *args: Any,
    rank: int,
    ranks: int,
    answers: decisions.Answers | None = None,
    early: bool = False,
    **keywords: Any,
) -> tuple[T, list[Call]]:
    """Runs function(*args, **keywords) as rank `rank` of `ranks`. Returns what it returned, and its collectives.

    answers: what nobody is there to say; default: every rank is as this one
    early:   asynchronous collectives are over at once, and not when they are waited for. Memory that waits for one is
             between the two on a real rank

    The random state of this process is afterwards what it was. Raises ValueError where the function asks for a value
    that no tensor has here, and inside of a rank.
    """
    before = device.random_state()
    try:
        with (
            virtual.group(rank, ranks, answers, early) as calls,
            torch_private.without_values(),
        ):
            return function(*args, **keywords), calls
    except RuntimeError as error:
        if torch_private.needs_values(error):
            raise ValueError(
                f"rank {rank} of {ranks} cannot be traced, since its way depends on values of tensors "
                f"({str(error).splitlines()[0]}). Run it: launch(..., record=True), and measure there"
            ) from error
        raise
    finally:
        device.set_random_state(before)
