"""Rows of each weight, as fully_shard cuts them, and the next weight on its way."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch

from dtcourse.course.judging import Answer, Each, Exercise, require, require_close
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

ROWS = Exercise(
    "forward_in_rows",
    lesson="16",
    title="Rows, and the next weight on its way",
    takes=("forward_in_rows",),
    target="one process's output to 1e-6 for any rows; (p - 1) parts sent per layer; two whole weights; 1.01 times the "
    "least time",
    forbidden=(
        "torch.distributed.fsdp",
        "torch.distributed.tensor",
        "dtcourse.sharding",
        "dtcourse.collectives.autograd",
    ),
)

BANDWIDTH = 1e6  # bytes per second
SAMPLES = 4


def _forward(
    forward_in_rows: Any, own: list[torch.Tensor], rows: list[int], x: torch.Tensor, seconds: float
) -> tuple[torch.Tensor, float, int]:
    """The output, when it was there, and the most bytes alive beside the shards."""
    from dtcourse import emulation
    from dtcourse.profiling.memory_tracker import MemoryTracker

    shards = [part.clone() for part in own]

    def layer(i: int, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        if seconds:
            emulation.sleep(seconds)
        return torch.tanh(x @ weight.T)

    start = emulation.now() if seconds else 0.0
    with torch.no_grad(), MemoryTracker(inputs=[x, *shards]) as tracker:
        before = tracker.history.total()[-1] if len(tracker.history.total()) else 0
        got = forward_in_rows(x, shards, list(rows), layer)
    took = emulation.now() - start if seconds else 0.0
    return got.clone(), took, int(tracker.peak.bytes - before)


def _shard(weight: torch.Tensor, ranks: int, rank: int) -> torch.Tensor:
    each = -(-len(weight) // ranks)
    return weight[rank * each : (rank + 1) * each].clone()


def _layers(
    answer: Answer, ranks: int, widths: list[int], seconds: float = 0.0, **more: Any
) -> tuple[Any, list[torch.Tensor], torch.Tensor]:
    weights = [torch.randn(b, a) / a**0.5 for a, b in pairwise(widths)]
    x = torch.randn(SAMPLES, widths[0])
    right = x
    for weight in weights:
        right = torch.tanh(right @ weight.T)
    rows = [len(weight) for weight in weights]
    own = Each([[_shard(weight, ranks, rank) for weight in weights] for rank in range(ranks)])
    return answer.run(_forward, ranks, own, rows, x, seconds, **more), weights, right


@ROWS.check("the output, for any number of rows", points=3, needs=("check_rows_traffic",))
def check_rows_output(answer: Answer) -> None:
    """Rows that divide, rows that do not, ranks without a row."""
    for ranks, widths in (
        (2, [6, 8, 6, 4]),
        (3, [5, 7, 4, 5]),
        (4, [3, 5, 2, 3]),
        (4, [6, 9, 1, 7]),
    ):
        run, _, right = _layers(answer, ranks, widths)
        for rank in range(ranks):
            require_close(
                run[rank][0],
                right,
                f"Weights with {widths[1:]} rows on {plural(ranks, 'rank')}: the output on rank {rank} is not that "
                "of one process: it",
                1e-6,
                "Is each weight whole, in rank order, without its padding, when its layer computes?",
            )


@ROWS.check("(p - 1) parts per layer", points=2, needs=("check_rows_output",))
def check_rows_traffic(answer: Answer) -> None:
    """A part is ceil(rows / p) rows."""
    for ranks, widths in ((2, [6, 8, 5]), (3, [5, 7, 4])):
        run, weights, _ = _layers(answer, ranks, widths, backend="ring", record=True)
        exact = sum(4 * (ranks - 1) * -(-len(w) // ranks) * w.shape[1] for w in weights)
        for rank in range(ranks):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent == exact,
                f"Weights with {widths[1:]} rows on {plural(ranks, 'rank')}: rank {rank} sends {sent:,} bytes, and "
                f"one all-gather per layer of parts of ceil(rows / p) rows sends {exact:,}. What does your "
                "collective carry besides?",
            )


@ROWS.check("the next weight comes while a layer computes", points=3, needs=("check_rows_output",))
def check_rows_time(answer: Answer) -> None:
    """Emulated: a layer takes as long as a gather, or half of it."""
    widths = [60, 64, 60, 64, 60]
    gather = 64 * 60 * 4 / 2 / BANDWIDTH  # on two ranks: one part
    for seconds in (gather, gather / 2):
        run, weights, _ = _layers(
            answer, 2, widths, seconds, network=EmulatedNetwork(bandwidth=BANDWIDTH), clock="virtual", backend="ring"
        )  # fmt: skip
        least = gather + (len(weights) - 1) * max(gather, seconds) + seconds
        took = max(run[rank][1] for rank in range(2))
        alone = len(weights) * (gather + seconds)
        require(
            took <= 1.01 * least,
            f"A gather takes {1e3 * gather:.2f} ms and a layer {1e3 * seconds:.2f}: {len(weights)} layers take "
            f"{1e3 * took:.2f} ms, where {1e3 * least:.2f} are enough, and one after the other is "
            f"{1e3 * alone:.2f}. When does the next weight's gather start, and "
            "who waits for it, and when?",
        )


@ROWS.check("at most two whole weights", points=2, needs=("check_rows_output", "check_rows_time"))
def check_rows_memory(answer: Answer) -> None:
    """Weights much larger than the activations."""
    widths = [64] * 7
    run, weights, _ = _layers(answer, 2, widths, backend="ring")
    weight, shards = weights[0].nbytes, sum(w.nbytes for w in weights) // 2
    for rank in range(2):
        more = run[rank][2] - shards
        most = 2 * weight + weight // 2 + 8 * SAMPLES * 64 * 4
        require(
            more <= most,
            f"Beside its shards rank {rank} holds {more:,} bytes at one moment; two whole weights are "
            f"{2 * weight:,}, and half of one and "
            "the activations are allowed besides. When is the last weight let go, how many are under way, and does "
            "putting parts together copy them?",
        )
