"""Which layers' optimizer states lie on the host: the fastest steps that fit. Really run, under emulation."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Exercise, require, require_near_best, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

CHOOSE = Exercise(
    "choose_host",
    lesson="16b",
    title="Choose the layers whose states lie on the host",
    takes=("choose_host",),
    launches=True,
    target="on 4 GPUs two steps that fit, measured, in at most 1.01 times the time of the best choice; at most 12 of "
    "32 choices tried",
)

LAYERS, WIDTH, STEPS = 5, 32, 2
MOST = 12  # choices that an answer may try
CHOICES: list[trials.Choice] = list(product((False, True), repeat=LAYERS))
# Each layer's inner width; samples; operations per second of GPU and host; bytes per second of the GPU's memory, of
# the host's and of the link between them.
Cluster = tuple[tuple[int, ...], int, float, float, float, float]
LARGE_UPDATE: Cluster = ((48, 16, 32, 64, 24), 64, 1e9, 5e8, 1e8, 2e7)
SLOW_LINK: Cluster = ((48, 16, 32, 64, 24), 64, 1e9, 5e8, 1e8, 6e6)
FAST_LINK: Cluster = ((24, 64, 16, 32, 40), 128, 2e9, 3e8, 3e8, 1e8)
# With the GPU's bytes; and the best choice, which tests/course/test_choose_host.py finds by running every one.
Given = tuple[Cluster, int]
ROOM: dict[Given, str] = {(LARGE_UPDATE, 280_000): "00101"}
LITTLE: dict[Given, str] = {(LARGE_UPDATE, 236_000): "00011", (SLOW_LINK, 245_000): "01101"}
LINK: dict[Given, str] = {(FAST_LINK, 345_000): "01111"}


class Layer(nn.Module):
    """An MLP that is added to what came in; one matrix up and one down, in one parameter."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(2, inner, WIDTH) / WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (samples, WIDTH)."""
        up, down = self.weight
        return x + torch.tanh(x @ up.T) @ down


def step(choice: tuple[bool, ...], inner: tuple[int, ...], samples: int) -> tuple[float, float]:
    """On each rank: the peak of the GPU's live bytes, and the seconds."""
    peak, seconds, _ = trained(choice, inner, samples)
    return peak, seconds


def trained(
    choice: tuple[bool, ...], inner: tuple[int, ...], samples: int
) -> tuple[float, float, list[torch.Tensor]]:
    """On each rank: steps of rank 0, the GPU, with rank 1, its host. Peak, seconds, and the layers' new weights."""
    import torch.distributed as dist

    torch.manual_seed(0)
    model = nn.ModuleList(Layer(width) for width in inner)
    x = torch.randn(samples, WIDTH)
    weights: list[Any] = [layer.weight for layer in model]
    moved = [w for w, there in zip(weights, choice, strict=True) if there]
    start = trials.begin_together()
    if dist.get_rank():
        _host(moved[::-1])
        return 0.0, 0.0, []
    stays = [w for w, there in zip(weights, choice, strict=True) if not there]
    return *_gpu(model, x, moved, stays, start), [w.detach() for w in weights]


def _adam(weights: list[Any]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, fused=True)


def _host(weights: list[Any]) -> None:
    """Updates each weight as its gradient comes, in backward's order, and sends it back."""
    import torch.distributed as dist

    optimizers = [_adam([w]) for w in weights]
    back: list[Any] = []
    for _ in range(STEPS):
        for w, optimizer in zip(weights, optimizers, strict=True):
            w.grad = torch.empty_like(w)
            dist.recv(w.grad, 0)
            optimizer.step()
            back.append(dist.isend(w.detach().clone(), 0))
    for work in back:
        work.wait()


def _gpu(
    model: nn.ModuleList, x: torch.Tensor, moved: list[Any], stays: list[Any], start: float
) -> tuple[float, float]:
    """A weight that has been moved is waited for when the next forward needs it; the last ones, at the end."""
    import torch.distributed as dist

    from dtcourse import emulation
    from dtcourse.profiling.memory_tracker import MemoryTracker

    optimizer = _adam(stays) if stays else None
    coming: dict[Any, Any] = {}
    leaving: list[Any] = []

    def send(w: Any) -> None:
        leaving.append((dist.isend(w.grad, 1), w.grad))
        w.grad = None
        coming[w] = dist.irecv(w.detach(), 1)

    def land(w: Any) -> None:
        if w in coming:
            coming.pop(w).wait()

    with MemoryTracker(model, optimizer, inputs=[x]) as tracker:
        for w in moved:
            w.register_post_accumulate_grad_hook(send)
        for _ in range(STEPS):
            y = x
            for layer in model:
                land(layer.weight)
                y = layer(y)
            loss = y.square().mean()
            loss.backward()
            del y, loss
            while leaving:
                leaving.pop()[0].wait()
            if optimizer:
                optimizer.step()
                optimizer.zero_grad()
        for w in moved:
            land(w)
    return float(tracker.peak.bytes), emulation.now() - start


def case(cluster: Cluster, free: int) -> trials.Case:
    """A GPU of so many bytes, as an answer gets it."""
    inner, samples, flops, bandwidth, of_host, link = cluster
    emulated = {
        "devices": [EmulatedDevice(flops, bandwidth), EmulatedDevice(flops, of_host)],
        "network": EmulatedNetwork(bandwidth=link),
    }
    sizes = tuple(2 * WIDTH * width for width in inner)
    return trials.Case(step, 2, CHOICES, (inner, samples), (free, sizes), MOST, emulated)


PRACTICE = case(*next(iter(ROOM)))


def choice_of(moved: str) -> trials.Choice:
    """A choice as the tables write it: 1 for a layer whose states are on the host."""
    return tuple(layer == "1" for layer in moved)


def _require(answer: Answer, cases: dict[Given, str], hint: str) -> None:
    for (cluster, free), best in cases.items():
        where = f"{free:,} bytes, layers of {', '.join(f'{2 * WIDTH * w:,}' for w in cluster[0])} parameters"
        tried = case(cluster, free).tried(answer, step, [choice_of(best)])
        ((_, least),) = tried.probed
        peak, taken = trials.require_possible(
            where,
            tried,
            choice_of("00001"),
            "Of each layer it says True or False: whether its states are on the host.",
        )
        require(
            peak <= free,
            f"{where}: {tried.choice!r} takes {peak:,.0f} bytes, which does not fit. Was it measured before it was "
            "chosen?",
        )
        require_near_best(where, tried.choice, taken * 1e3, least * 1e3, "ms", hint)


@CHOOSE.check("where nothing has to be moved", points=2)
def check_room(answer: Answer) -> None:
    """What is moved must save time."""
    _require(
        answer,
        ROOM,
        "All states have room on the GPU. What does it save if it does not update a layer, and for which layers does "
        "it wait in return?",
    )


@CHOOSE.check("where there is little room", points=3)
def check_little(answer: Answer) -> None:
    """Few bytes, and those that are not missed soon."""
    _require(
        answer,
        LITTLE,
        "Whose gradients come first in backward, whose parameters are needed last in the next forward, and how many "
        "bytes travel between?",
    )


@CHOOSE.check("where the link is fast", points=3)
def check_link(answer: Answer) -> None:
    """As much as hides."""
    _require(
        answer,
        LINK,
        "Is what just fits also the fastest? What does each further layer save on the GPU, and which one's way hides "
        "behind nothing?",
    )
