"""What to give up so that a step fits: a large micro-batch, activations, or the optimizer's states. Really run."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

CHOOSE = Exercise(
    "choose_memory",
    lesson="14",
    title="Choose what to give up",
    takes=("choose_memory",),
    launches=True,
    target="on 6 devices a step that fits, measured, in at most 1.01 times the best one's time; at most 10 of 36 "
    "choices tried",
)

RANKS, SAMPLES, LAYERS, WIDTH = 2, 4, 5, 32
MOST = 10  # choices that an answer may try
CHOICES: list[trials.Choice] = [
    (micro, recomputed, sharded)
    for micro in (1, 2, 4)
    for recomputed in range(LAYERS + 1)
    for sharded in (False, True)
]
# tokens per sample; operations and bytes per second of a device; bytes per second of the network
Cluster = tuple[int, float, float, float]
FAST: Cluster = (64, 4e9, 4e8, 2e8)
SLOW: Cluster = (64, 4e9, 4e8, 2e7)
SHORT: Cluster = (16, 2e9, 4e8, 5e7)
# With each, the bytes of the device.
ROOMY = ((FAST, 2_500_000), (SLOW, 2_300_000))
ACTIVATIONS = ((SLOW, 1_000_000), (FAST, 1_100_000))
STATES = ((SLOW, 840_000), (SHORT, 700_000))


class Layer(nn.Module):
    """Up, GELU, down, and what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See Layer."""
        return x + self.down(nn.functional.gelu(self.up(x)))


def step(choice: tuple[int, int, bool], tokens: int) -> tuple[float, float]:
    """On each rank: one step of Adam. The peak of its live bytes, and its seconds."""
    import torch.distributed as dist

    from dtcourse import emulation
    from dtcourse.memory import checkpoint
    from dtcourse.profiling.memory_tracker import MemoryTracker

    micro, recomputed, sharded = choice
    torch.manual_seed(0)
    model = nn.ModuleList(Layer() for _ in range(LAYERS))
    x = torch.randn(SAMPLES, tokens, WIDTH)
    weights = list(model.parameters())
    # Sharded: the ranks own weights by turns, as ZeRO-1 deals them out.
    mine = weights[dist.get_rank() :: RANKS] if sharded else weights
    optimizer = torch.optim.Adam(mine, lr=1e-3, foreach=False)
    for p in weights:
        p.grad = torch.zeros_like(p)
    optimizer.step()  # from now on the states are there
    for p in weights:
        p.grad = None
    start = trials.begin_together()
    with MemoryTracker(model, optimizer, [x]) as tracker:
        for part in x.split(micro):
            for i, layer in enumerate(model):
                part = checkpoint(layer, part) if i < recomputed else layer(part)
            (part.square().sum() / SAMPLES).backward()
            del part
        for p in weights:
            assert p.grad is not None
            dist.all_reduce(p.grad.div_(RANKS))
        optimizer.step()
        for i, p in enumerate(weights if sharded else ()):
            dist.broadcast(p.detach(), i % RANKS)
    return float(tracker.peak.bytes), emulation.now() - start


def case(cluster: Cluster, capacity: int) -> trials.Case:
    """A device of so many bytes, as an answer gets it."""
    tokens, flops, bandwidth, network = cluster
    emulated = {
        "devices": EmulatedDevice(flops, bandwidth),
        "network": EmulatedNetwork(latency=1e-5, bandwidth=network),
    }
    return trials.Case(step, RANKS, CHOICES, (tokens,), (capacity, SAMPLES, LAYERS), MOST, emulated)


PRACTICE = case(*ROOMY[0])


@cache
def measured(cluster: Cluster) -> dict[trials.Choice, trials.Measured]:
    """Peak bytes and seconds of every choice."""
    return case(cluster, 0).search()


def best(cluster: Cluster, capacity: int) -> tuple[float, trials.Choice]:
    """The shortest time of what fits, and its choice."""
    return min(
        (taken, choice) for choice, (peak, taken) in measured(cluster).items() if peak <= capacity
    )


def _require(answer: Answer, cases: tuple[tuple[Cluster, int], ...], hint: str) -> None:
    for cluster, capacity in cases:
        where = f"{capacity:,} bytes, {cluster[0]} tokens per sample, {cluster[3] / 1e6:g} MB/s between the ranks"
        tried = case(cluster, capacity).tried(answer)
        peak, taken = trials.require_possible(
            where,
            tried,
            (4, 2, True),
            f"Micro-batches are equal parts of {SAMPLES} samples, 0 to {LAYERS} layers are recomputed, and the states "
            "are sharded or not: True or False.",
        )
        require(
            peak <= capacity,
            f"{where}: {tried.choice!r} takes {peak:,.0f} bytes, which does not fit. Was it measured before it was "
            "chosen?",
        )
        least, _ = best(cluster, capacity)
        require_near_best(where, tried.choice, taken * 1e3, least * 1e3, "ms", hint)


@CHOOSE.check("where there is room", points=2)
def check_roomy(answer: Answer) -> None:
    """All fits: nothing has to be given up, and sharding saves time or costs it."""
    _require(
        answer,
        ROOMY,
        "What has to be given up here at all? And does sharding cost time here, or save it?",
    )


@CHOOSE.check("where activations count", points=3)
def check_activations(answer: Answer) -> None:
    """A smaller micro-batch, or some layers computed again."""
    _require(
        answer,
        ACTIVATIONS,
        "What does a smaller micro-batch cost here, and what does one more recomputed layer? Must all of them be?",
    )


@CHOOSE.check("where states count", points=3)
def check_states(answer: Answer) -> None:
    """Little memory: sharding makes room, and is not enough alone."""
    _require(
        answer,
        STATES,
        "What does sharding make room for, and what is cheapest to give up besides?",
    )
