"""Which of PyTorch's wrappers: the shortest step that fits. Its own classes run, on the course's ring, emulated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtcourse.course.checks.lesson_29_frameworks.counted_steps import (
    WRAPPERS,
    model_of,
    wrapped,
)
from dtcourse.course.judging import Answer, Exercise, require, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

CHOOSE = Exercise(
    "choose_wrapper",
    lesson="29",
    title="Which wrapper?",
    takes=("choose_wrapper",),
    target="on 6 clusters, a step that fits, in at most 1.03 times the time of the best one that does; at most 2 of 5 "
    "wrappers measured",
    forbidden=("dtcourse",),
    launches=True,
)

NEAR = 1.03
MOST = 2  # choices that an answer may measure
MICRO_BATCHES = 4  # of the pipeline
FLOPS = 1e9
CHOICES: list[trials.Choice] = [(wrapper,) for wrapper in WRAPPERS]


class Given(NamedTuple):
    """What is unlike.

    widths:    of the samples and of each layer's output
    samples:   of the whole batch
    latency:   seconds of a message
    bandwidth: bytes per second
    room:      bytes that a rank may hold at once
    """

    widths: tuple[int, ...]
    samples: int
    ranks: int
    latency: float
    bandwidth: float
    room: int


# The best choice of each, which tests/course/test_choose_wrapper.py finds by running every one.
Best = dict[Given, str]
SENT: Best = {
    Given((64,) * 5, 384, 4, 1e-3, 1e8, 640_000): "ddp",
    Given((48, 192, 48, 192, 48), 16, 2, 1e-6, 5e7, 800_000): "tensor",
}
TIGHT: Best = {
    Given((96,) * 7, 336, 3, 1e-5, 4e7, 1_120_000): "fully_shard, not resharded",
    Given((144,) * 9, 256, 4, 1e-5, 4e8, 1_640_000): "fully_shard",
}
SLOW: Best = {
    Given((128,) * 5, 96, 2, 1e-5, 1e7, 1_500_000): "pipeline",
    Given((256, 96, 48, 48, 48, 48, 48), 24, 3, 5e-4, 1e7, 640_000): "tensor",
}


def step(choice: tuple[str], widths: tuple[int, ...], samples: int) -> tuple[float, float]:
    """On each rank: the seconds of a forward, its backward and a step of Adam, and the most bytes that live at once.

    The step before it, in which buckets, shapes and Adam's states come, is not in them.
    """
    from dtcourse import emulation
    from dtcourse.profiling.memory_tracker import MemoryTracker

    model, passes, batch = made(choice[0], widths, samples)
    optimizer = torch.optim.Adam(model.parameters())
    passes()
    optimizer.step()
    optimizer.zero_grad()
    start = trials.begin_together()
    with MemoryTracker(model, optimizer, batch) as tracker:
        passes()
        optimizer.step()
        seconds = emulation.now() - start
    return seconds, float(tracker.peak.bytes)


def made(
    wrapper: str, widths: tuple[int, ...], samples: int
) -> tuple[nn.Module, Callable[[], object], list[Tensor]]:
    """On each rank: what it has of the model; a function that goes forward and backward; what it has of the batch."""
    import torch.distributed as dist

    rank, ranks = dist.get_rank(), dist.get_world_size()
    make = torch.Generator().manual_seed(1)
    x, y = (torch.randn(samples, width, generator=make) for width in (widths[0], widths[-1]))
    if wrapper == "pipeline":
        return _pipeline(model_of(widths), x, y)
    model = wrapped(wrapper, widths, bucket_view=True)
    if wrapper != "tensor":
        x, y = (whole.chunk(ranks)[rank].clone() for whole in (x, y))
    return model, lambda: F.mse_loss(model(x), y).backward(), [x, y]


def _pipeline(
    model: Any, x: Tensor, y: Tensor
) -> tuple[nn.Module, Callable[[], object], list[Tensor]]:
    """As many layers on each rank."""
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

    rank, ranks = dist.get_rank(), dist.get_world_size()
    each = len(model) // ranks
    part = model[each * rank : each * (rank + 1)]
    stage = PipelineStage(part, rank, ranks, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=F.mse_loss)
    first = [x] if rank == 0 else []
    last: dict[str, Any] = {"target": y} if rank == ranks - 1 else {}
    return part, lambda: schedule.step(*first, **last), [*first, *last.values()]


def case(given: Given) -> trials.Case:
    """A job and a cluster, as an answer gets them."""
    emulated = {
        "devices": EmulatedDevice(FLOPS),
        "network": EmulatedNetwork(given.latency, given.bandwidth),
    }
    job = (given.widths, given.samples)
    told = (*job, given.ranks, given.room)
    return trials.Case(step, given.ranks, CHOICES, job, told, MOST, emulated)


PRACTICE = case(Given((96,) * 5, 48, 2, 1e-5, 2e7, 600_000))


def _require(answer: Answer, cases: Best, hint: str) -> None:
    for given, best in cases.items():
        where = (
            f"widths {given.widths}, {given.samples} samples, {given.ranks} ranks, messages of {given.latency:g} s and "
            f"{given.bandwidth:g} bytes/s, at most {given.room:,} bytes"
        )
        tried = case(given).tried(answer, step, [(best,)])
        words = ", ".join(map(repr, WRAPPERS))
        require(
            tried.measured is not None,
            f"{where}: a choice is one of {words}; got {tried.choice!r}.",
        )
        assert tried.measured is not None
        (chosen,), (seconds, held) = tried.choice, tried.measured
        require(
            held <= given.room,
            f"{where}: with {chosen!r} a rank holds {held:,.0f} bytes at once. What of the weights, of the gradients, "
            "of Adam's states and of the activations is on each rank, and what did `measure` say?",
        )
        ((least, _),) = tried.probed
        require(
            seconds <= NEAR * least,
            f"{where}: {chosen!r} takes {1e3 * seconds:.4g} ms, and the best one that fits {1e3 * least:.4g} ms. "
            f"{hint}",
        )


@CHOOSE.check("many samples, and few", points=4)
def check_sent(answer: Answer) -> None:
    """Bytes that grow with samples, or with weights; one message after the other."""
    _require(
        answer,
        SENT,
        "Whose bytes grow with the samples, and whose with the weights? And how many messages does a rank wait for, "
        "one after the other?",
    )


@CHOOSE.check("little room", points=4)
def check_tight(answer: Answer) -> None:
    """As much as fits is whole on each rank."""
    _require(
        answer,
        TIGHT,
        "What has a rank under each wrapper of weights, gradients, Adam's states and activations? Which of those that "
        "fit sends least, and which ranks of a pipeline wait?",
    )


@CHOOSE.check("slow links", points=4)
def check_slow(answer: Answer) -> None:
    """A pipeline, where its fullest stage fits."""
    _require(
        answer,
        SLOW,
        "Which wrappers send what grows with the weights, though there are fewer samples than a layer is wide? And "
        "which of the others is the quicker one here that fits?",
    )
