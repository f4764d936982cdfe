"""Trainings written down as data, so that they can be drawn at random, made smaller, and printed.

A Program says what the model is (chains.py), what each rank does with it in which order (steps of backwards of
forwards, each on so many rows), and with which optimizer. The technique that it is trained with is not part of it.

    truth = in_one_process(program)                          # all ranks' losses, one after the other, in one model
    steps = train(wrap(model), model, program.plan(rank), ...)    # harness.train, on each rank
    print(program)

A rank's loss is a sum over its rows, so a rank without rows has a loss of 0 and gradients of 0. The truth is the mean
of the ranks' losses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from dtcourse.verify.chains import Block, Chain, unpacked
from dtcourse.verify.gradients import gradients_of
from dtcourse.verify.harness import LEARNING_RATE, Backward, Steps


@dataclass(frozen=True)
class Forward:
    """rows: of each rank; left_out: on each rank, the optional blocks that it does not use."""

    rows: tuple[int, ...]
    left_out: tuple[frozenset[int], ...]

    def __str__(self) -> str:
        without = [
            f"rank {rank} without block {', '.join(map(str, sorted(blocks)))}"
            for rank, blocks in enumerate(self.left_out)
            if blocks
        ]
        rows = f"{' and '.join(map(str, self.rows))} rows"
        return f"forward({'; '.join([rows, *without])})"


@dataclass(frozen=True)
class MicroBatch:
    """Forwards whose losses are added and go through one backward, in no_sync() where `sync` is False."""

    forwards: tuple[Forward, ...]
    sync: bool = True

    def __str__(self) -> str:
        forwards = " + ".join(map(str, self.forwards))
        return f"backward of {forwards}" if self.sync else f"in no_sync(): backward of {forwards}"


@dataclass(frozen=True)
class Program:
    """A model, what the ranks do with it, and SGD's options.

    steps:       of each step, its backwards in their order
    set_to_none: how gradients are cleared before a step
    """

    ranks: int
    blocks: tuple[Block, ...]
    steps: tuple[tuple[MicroBatch, ...], ...]
    width: int = 2
    returns: str = "tensor"
    momentum: float = 0.0
    weight_decay: float = 0.0
    set_to_none: bool = True

    def build(self, seed: int) -> Chain:
        """The model, from a seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Chain(self.blocks, self.width, self.returns)

    @property
    def sgd_options(self) -> dict[str, Any]:
        """What SGD is told."""
        decay = {"momentum": self.momentum, "weight_decay": self.weight_decay}
        return {"lr": LEARNING_RATE, **decay}

    def plan(self, rank: int) -> list[list[Backward]]:
        """What harness.train does on a rank."""
        return [
            [
                Backward(
                    [
                        self._loss(forward, rank, seed=hash((s, b, f, rank)) % (1 << 31))
                        for f, forward in enumerate(micro_batch.forwards)
                    ],
                    micro_batch.sync,
                )
                for b, micro_batch in enumerate(step)
            ]
            for s, step in enumerate(self.steps)
        ]

    def _loss(self, forward: Forward, rank: int, seed: int) -> Callable[[nn.Module], torch.Tensor]:
        random = torch.Generator().manual_seed(seed)
        shape = (forward.rows[rank], self.width)
        x = torch.randn(shape, dtype=torch.float64, generator=random)

        def loss(model: nn.Module) -> torch.Tensor:
            output, _ = model(x, forward.left_out[rank])
            y = unpacked(output, self.returns)
            return (y * torch.arange(1, self.width + 1) + y**2 / 4).sum()

        return loss

    def __str__(self) -> str:
        options = ", ".join(
            f"{name}={value:g}" for name, value in self.sgd_options.items() if value
        )
        cleared = "" if self.set_to_none else ", zero_grad(set_to_none=False)"
        returned = "" if self.returns == "tensor" else f", returns a {self.returns}"
        lines = [
            f"{self.ranks} ranks, SGD({options}){cleared}",
            f"model of width {self.width}{returned}",
        ]
        lines += [f"    block {i}: {block}" for i, block in enumerate(self.blocks)]
        for s, step in enumerate(self.steps):
            lines += [f"step {s}", *(f"    {micro_batch}" for micro_batch in step)]
        return "\n".join(lines)


# --- the truth --------------------------------------------------------------------------------------------------


@dataclass
class Truth:
    """What one process did, and which parameters each rank's backwards gave a gradient.

    used: [step][backward][rank], by name
    """

    steps: Steps
    used: list[list[list[frozenset[str]]]]
    trained: frozenset[str]


def in_one_process(program: Program) -> Truth:
    """Trains one model with the mean of all ranks' losses."""
    model = program.build(0)
    names = {p: name for name, p in model.named_parameters() if p.requires_grad}
    optimizer = torch.optim.SGD(list(names), **program.sgd_options)
    arrived: set[str] = set()
    for parameter in names:
        parameter.register_post_accumulate_grad_hook(lambda p: arrived.add(names[p]))
    plans = [program.plan(rank) for rank in range(program.ranks)]
    gradients, losses, used = [], [], []
    for s, step in enumerate(program.steps):
        optimizer.zero_grad(set_to_none=program.set_to_none)
        used.append([[frozenset[str]() for _ in plans] for _ in step])
        total = 0.0
        for b in range(len(step)):
            for rank, plan in enumerate(plans):
                arrived.clear()
                for part in plan[s][b].losses:
                    loss = part(model) / program.ranks
                    loss.backward()
                    total += loss.item()
                used[s][b][rank] = frozenset(arrived)
        gradients.append(gradients_of(model))
        losses.append(total)
        optimizer.step()
    parameters = {n: p.detach().clone() for n, p in model.named_parameters()}
    return Truth(Steps(gradients, losses, parameters), used, frozenset(names.values()))
