"""Micro-batch, what to recompute and what to offload: the fastest step that fits. Really run."""

from __future__ import annotations

import weakref
from collections import deque
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

CHOOSE = Exercise(
    "choose_activation_memory",
    lesson="15",
    title="Choose the micro-batch, what to recompute and what to offload",
    takes=("choose_activation_memory",),
    target="on 6 devices a step that fits, measured, in at most 1.01 times the best one's time; at most 12 of 24 "
    "choices tried",
)

SAMPLES, BLOCKS, WIDTH = 4, 3, 32
WAYS = ("keep", "core", "block")
MOST = 12  # choices that an answer may try
CHOICES: list[trials.Choice] = [
    (micro, way, moved) for micro in (2, 4) for way in WAYS for moved in range(BLOCKS + 1)
]
SMALL = 1024  # bytes: what is smaller stays on the device
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


class ToHost(torch.autograd.graph.saved_tensors_hooks):
    """Sends what is saved to rank 1, and fetches it back; two copies may be under way in each direction."""

    def __init__(self, model: nn.Module) -> None:
        self.stays = {p.data_ptr() for p in model.parameters()}
        self.leaving: deque[Any] = deque()
        self.known: dict[int, tuple[Any, int, int]] = {}  # of a storage: itself, version, number
        self.shapes: list[torch.Size] = []
        self.uses: list[int] = []
        self.coming: dict[int, tuple[Any, torch.Tensor]] = {}
        super().__init__(self.send, self.fetch)

    def send(self, x: torch.Tensor) -> Any:
        """The number under which rank 1 keeps x; x itself where it stays."""
        import torch.distributed as dist

        if x.data_ptr() in self.stays or x.nbytes < SMALL:
            return x
        storage, version, number = self.known.get(x.data_ptr(), (lambda: None, 0, 0))
        if storage() is not None and version == x._version and self.shapes[number] == x.shape:
            self.uses[number] += 1
            return number
        number = len(self.shapes)
        self.known[x.data_ptr()] = weakref.ref(x.untyped_storage()), x._version, number
        self.shapes.append(x.shape)
        self.uses.append(1)
        request(1, x.numel())
        self.leaving.append(dist.isend(x.contiguous().view(-1), 1))
        if len(self.leaving) > 2:
            self.leaving.popleft().wait()
        return number

    def fetch(self, number: Any) -> torch.Tensor:
        """What was sent; and the one before it, which backward wants next, starts on its way."""
        if isinstance(number, torch.Tensor):
            return number
        while self.leaving:
            self.leaving.popleft().wait()
        for one in (number, number - 1):
            if one >= 0 and self.uses[one] and one not in self.coming:
                self.coming[one] = self.start(one)
        work, x = self.coming[number]
        work.wait()
        self.uses[number] -= 1
        if not self.uses[number]:
            del self.coming[number]
        return x.view(self.shapes[number])

    def start(self, number: int) -> tuple[Any, torch.Tensor]:
        """Asks rank 1 for a copy."""
        import torch.distributed as dist

        request(2, number)
        x = torch.empty(self.shapes[number].numel())
        return dist.irecv(x, 1), x


def request(what: int, number: int = 0) -> None:
    """To rank 1: 1, so many numbers come; 2, that one is wanted; 0, the step is over."""
    import torch.distributed as dist

    dist.send(torch.tensor([what, number]), 1)


def host() -> None:
    """What rank 1 does: the host's memory."""
    import torch.distributed as dist

    kept: list[torch.Tensor] = []
    sending: list[Any] = []
    while True:
        dist.recv(asked := torch.empty(2, dtype=torch.int64), 0)
        what, number = asked.tolist()
        if what == 0:
            for work in sending:
                work.wait()
            return
        if what == 1:
            kept.append(torch.empty(number))
            dist.recv(kept[-1], 0)
        else:
            sending.append(dist.isend(kept[number], 0))


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
