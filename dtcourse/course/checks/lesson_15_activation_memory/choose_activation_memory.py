"""Micro-batch, what to recompute and what to offload: the fastest step that fits. Really run."""

from __future__ import annotations

from functools import cache, partial

import torch
from torch import nn

from dtcourse.course.checks.lesson_15_activation_memory.host_link import ToHost, host, request
from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

CHOOSE = Exercise(
    "choose_activation_memory",
    lesson="15",
    title="Choose the micro-batch, what to recompute and what to offload",
    takes=("choose_activation_memory",),
    launches=True,
    target="on 6 devices a step that fits, measured, in at most 1.01 times the best one's time; at most 12 of 24 "
    "choices tried",
)

SAMPLES, BLOCKS, WIDTH = 4, 3, 32
WAYS = ("keep", "core", "block")
MOST = 12  # choices that an answer may try
CHOICES: list[trials.Choice] = [
    (micro, way, moved) for micro in (2, 4) for way in WAYS for moved in range(BLOCKS + 1)
]
# tokens per sample; operations and bytes per second of the device; bytes per second of the link to the host
Cluster = tuple[int, float, float, float]
SLOW_LINK: Cluster = (64, 4e9, 4e8, 2e7)
FAST_LINK: Cluster = (128, 8e9, 8e8, 2.5e8)
# With each, the bytes of the device.
LARGE = ((SLOW_LINK, 3_000_000), (FAST_LINK, 3_500_000))
SHORT = ((SLOW_LINK, 1_150_000), (SLOW_LINK, 900_000))
LINK = ((FAST_LINK, 1_400_000), (FAST_LINK, 1_300_000))


class Block(nn.Module):
    """Attention of one head and an MLP, each added to what came in; no norms, no biases."""

    def __init__(self) -> None:
        super().__init__()
        linear = partial(nn.Linear, bias=False)
        self.qkv, self.out = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.up, self.down = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, recompute_core: bool) -> torch.Tensor:
        """x: (samples, tokens, WIDTH)."""
        from dtcourse.memory import checkpoint

        q, k, v = self.qkv(x).chunk(3, dim=-1)
        x = x + self.out(checkpoint(core, q, k, v) if recompute_core else core(q, k, v))
        return x + self.down(nn.functional.gelu(self.up(x)))


def core(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention's core: (samples, tokens, WIDTH) each."""
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)


def step(choice: tuple[int, str, int], tokens: int) -> tuple[float, float]:
    """On each rank: a step of rank 0, the device, with rank 1, its host. The peak of live bytes, and the seconds."""
    from contextlib import nullcontext

    import torch.distributed as dist

    from dtcourse import emulation
    from dtcourse.memory import checkpoint
    from dtcourse.profiling.memory_tracker import MemoryTracker

    micro, way, moved = choice
    torch.manual_seed(0)
    model = nn.ModuleList(Block() for _ in range(BLOCKS))
    x = torch.randn(SAMPLES, tokens, WIDTH)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    start = trials.begin_together()
    if dist.get_rank():
        host()
        return 0.0, 0.0
    with MemoryTracker(model, inputs=[x]) as tracker:
        link = ToHost(model)
        for part in x.split(micro):
            for i, block in enumerate(model):
                with link if i < moved else nullcontext():
                    part = (
                        checkpoint(block, part, False)
                        if way == "block"
                        else block(part, way == "core")
                    )
            loss = part.square().sum()
            del part
            loss.backward()
            del loss
    taken = emulation.now() - start
    request(0)
    return float(tracker.peak.bytes), taken


def case(cluster: Cluster, free: int) -> trials.Case:
    """A device of so many bytes, as an answer gets it."""
    tokens, flops, bandwidth, link = cluster
    emulated = {
        "devices": [EmulatedDevice(flops, bandwidth), EmulatedDevice()],
        "network": EmulatedNetwork(bandwidth=link),
    }
    return trials.Case(step, 2, CHOICES, (tokens,), (free, SAMPLES, BLOCKS), MOST, emulated)


PRACTICE = case(*LARGE[0])


@cache
def measured(cluster: Cluster) -> dict[trials.Choice, trials.Measured]:
    """Peak bytes and seconds of every choice."""
    return case(cluster, 0).search()


def best(cluster: Cluster, free: int) -> tuple[float, trials.Choice]:
    """The shortest time of what fits, and its choice."""
    return min(
        (taken, choice) for choice, (peak, taken) in measured(cluster).items() if peak <= free
    )


def _require(answer: Answer, cases: tuple[tuple[Cluster, int], ...], hint: str) -> None:
    for cluster, free in cases:
        where = (
            f"{free:,} bytes, {cluster[0]} tokens per sample, a link of {cluster[3] / 1e6:g} MB/s"
        )
        tried = case(cluster, free).tried(answer)
        peak, taken = trials.require_possible(
            where,
            tried,
            (4, "core", 0),
            f"micro is 2 or 4, the way is 'keep', 'core' or 'block', and 0 to {BLOCKS} blocks are moved.",
        )
        require(
            peak <= free,
            f"{where}: {tried.choice!r} takes {peak:,.0f} bytes, which does not fit. Was it measured before it was "
            "chosen?",
        )
        require_near_best(
            where, tried.choice, taken * 1e3, best(cluster, free)[0] * 1e3, "ms", hint
        )


@CHOOSE.check("where there is much memory", points=2)
def check_large(answer: Answer) -> None:
    """Large micro-batches, and nothing that runs twice."""
    _require(
        answer,
        LARGE,
        "What does a smaller micro-batch cost, and what does running twice cost? Does anything have to be paid here?",
    )


@CHOOSE.check("where there is little", points=3)
def check_short(answer: Answer) -> None:
    """Recompute, and take fewer samples."""
    _require(
        answer,
        SHORT,
        "What does each of the three ways to save memory cost on this device, and how many bytes does it free?",
    )


@CHOOSE.check("where copies hide", points=3)
def check_link(answer: Answer) -> None:
    """A fast link: as many blocks as hide."""
    _require(
        answer,
        LINK,
        "How many blocks can be moved before copies are slower than computing, and what does that save in recomputing?",
    )
