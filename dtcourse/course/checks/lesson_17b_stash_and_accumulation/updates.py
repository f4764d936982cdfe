"""Steps of a pipeline's last stage with many micro-batches, with a mistake or without: for diagnose_update.

Each step is run, forward and backward, and what it keeps is counted while it runs: nothing of its record is made up.
"""

from __future__ import annotations

import weakref
from random import Random
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, INNER, CLASSES = 6, 16, 5
MOST_TOKENS = 24
Gradients = dict[str, Tensor]
# Tokens and gradients of each micro-batch by itself; what .grad holds after the step; (action, bytes of activations
# that the rank holds after it).
Record = tuple[list[int], list[Gradients], Gradients, list[tuple[str, int]]]
Diagnosis = tuple[str, int | None]


class Job(NamedTuple):
    """What is drawn.

    tokens:    of each micro-batch
    recompute: whether forwards keep their input only
    held:      bytes that the rank holds besides
    odd:       the micro-batch that is missing, where one is
    backwards: the order of the backwards
    """

    tokens: tuple[int, ...]
    recompute: bool
    held: int
    odd: int
    backwards: tuple[int, ...]
    seed: int


class Saved:
    """A tensor that a forward has saved; it lives as long as the graph does."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes


class Stage(nn.Module):
    """A last stage with a dropout; it knows the bytes that its forwards have saved and that are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, CLASSES)
        self.saved: weakref.WeakSet[Saved] = weakref.WeakSet()

    def forward(self, x: Tensor) -> Tensor:
        """Logits of each token."""
        mine = {parameter.data_ptr() for parameter in self.parameters()}

        def pack(tensor: Tensor) -> Any:
            one = Saved(0 if tensor.data_ptr() in mine else tensor.nbytes)
            self.saved.add(one)
            return one, tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[1]):
            return self.down(F.dropout(F.gelu(self.up(x)), 0.2))

    def saved_bytes(self) -> int:
        """Of what its forwards have saved, without parameters."""
        return sum(one.nbytes for one in self.saved)

    def gradients(self) -> Gradients:
        """Copies of what `.grad` holds."""
        return {n: p.grad.clone() for n, p in self.named_parameters() if p.grad is not None}


def drawn(kind: str, turn: int, draw: Random) -> Job:
    """A job on which the mistake can be seen; of the healthy ones one has equal micro-batches, one a single one."""
    m = draw.randint(3, 7)
    tokens = [draw.randint(4, MOST_TOKENS) for _ in range(m)]
    if kind == "weighed alike":
        tokens[draw.randrange(m)] = 1
    if (kind, turn) == ("healthy", 1) or (kind == "summed" and turn != 0):
        tokens = [draw.randint(4, MOST_TOKENS)] * m
    if (kind, turn) == ("healthy", 2):
        tokens = tokens[:1]
    places = list(range(len(tokens)))
    return Job(
        tokens=tuple(tokens),
        recompute=kind == "other random numbers" or turn % 2 == 0,
        held=draw.randrange(1000, 9000),
        odd=draw.choice(places),
        backwards=tuple(draw.sample(places, len(places)) if turn == 0 else places),
        seed=draw.randrange(2**31),
    )


def run_of(kind: str, turn: int, draw: Random) -> tuple[Record, Diagnosis]:
    """A step with that mistake, or a healthy one, and what is to be said of it."""
    job = drawn(kind, turn, draw)
    return record(kind, job), (kind, job.odd if kind == "one missing" else None)


def record(kind: str, job: Job) -> Record:
    """Runs the step."""
    make = torch.Generator().manual_seed(job.seed)
    inputs = [torch.randn(n, WIDTH, generator=make) for n in job.tokens]
    targets = [torch.randint(CLASSES, (n,), generator=make) for n in job.tokens]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        stage = Stage()

        def loss_of(i: int, numbers: int) -> Tensor:
            torch.manual_seed(job.seed + numbers)
            return F.cross_entropy(stage(inputs[i]), targets[i])

        alone = []
        for i in range(len(job.tokens)):
            stage.zero_grad()
            loss_of(i, i).backward()
            alone.append(stage.gradients())
        stage.zero_grad()
        memory = _step(kind, job, stage, inputs, loss_of)
    return list(job.tokens), alone, stage.gradients(), memory


def _step(
    kind: str, job: Job, stage: Stage, inputs: list[Tensor], loss_of: Any
) -> list[tuple[str, int]]:
    """All forwards, then all backwards; gradients are in `.grad`. What lies there after each action."""
    m, total = len(job.tokens), sum(job.tokens)
    memory, graphs, held = [], dict[int, Tensor](), dict[int, Tensor]()

    def note(action: str) -> None:
        stashed = stage.saved_bytes() + sum(x.nbytes for x in held.values())
        memory.append((action, job.held + stashed))

    for i in range(m):
        loss = loss_of(i, i)
        if job.recompute:
            held[i] = inputs[i]
        else:
            graphs[i] = loss
        del loss
        note(f"F{i}")
    never = []
    for i in job.backwards:
        loss = loss_of(i, i + m * (kind == "other random numbers")) if job.recompute else graphs[i]
        weight = {"weighed alike": 1 / m, "summed": 1.0}.get(kind, job.tokens[i] / total)
        if kind == "one missing" and i == job.odd:
            weight = 0.0
        (loss * weight).backward(retain_graph=kind == "never freed")
        if kind == "never freed":
            never.append((loss, held.get(i)))
        else:
            graphs.pop(i, None)
            held.pop(i, None)
        del loss
        note(f"B{i}")
    return memory
