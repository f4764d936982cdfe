"""What a client does in a round: some steps of SGD on its own samples, from the server's model.

    work = ClientWork(loss, lr=0.1, steps=10, batch_size=16)

    y <- x
    y <- y - lr (g(y) + mu (y - x) + correction)        in each of the K steps

g is the gradient on the next batch. mu > 0 is FedProx's pull back to x; the correction is SCAFFOLD's c - c_k. Both are
0 in FedAvg.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dtcourse import device
from dtcourse.federated.vectors import ModelVector
from dtcourse.parameters.seeds import seed_of

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class ClientWork:
    """Local training.

    loss:       (outputs, targets) -> mean over the samples
    lr:         of the local steps
    steps:      K, of a round; or a function (round, client) -> K, where clients do not manage the same
    batch_size: samples of a step, from epochs shuffled anew, whose last batch may be smaller; None: all samples
    """

    loss: Loss
    lr: float
    steps: int | Callable[[int, int], int] = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if not self.lr > 0:
            raise ValueError(f"lr is above 0; got {self.lr}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(
                f"batch_size is 1 or more, or None for all samples; got {self.batch_size}"
            )
        if isinstance(self.steps, int) and self.steps < 1:
            raise ValueError(f"steps is 1 or more; got {self.steps}")

    def steps_of(self, number: int, client: int) -> int:
        """K of this client in round `number`."""
        return self.steps if isinstance(self.steps, int) else self.steps(number, client)

    def refusal(self, client: int, size: int, steps: int) -> str:
        """Why the client cannot take part, as a sentence; empty where it can.

        Every rank asks for every client of the round, in the same order, so that all know who takes part.
        """
        if size == 0:
            return (
                f"client {client} has no data: it sends nothing, and the round goes on without it"
            )
        if steps < 1:
            return f"client {client} has managed no step: it sends nothing, and the round goes on without it"
        return ""

    def spent(self, clients: Sequence[int]) -> list[str]:
        """What these clients have spent of their budgets, where there are any, for ranks to compare."""
        return []

    def batches(self, size: int, steps: int, draw: torch.Generator) -> Iterator[Tensor]:
        """The indices of each step's samples."""
        if self.batch_size is None or self.batch_size >= size:
            yield from [torch.arange(size)] * steps
            return
        order = torch.empty(0, dtype=torch.int64)
        for _ in range(steps):
            if not len(order):
                order = torch.randperm(size, generator=draw)
            yield order[: self.batch_size]
            order = order[self.batch_size :]

    def gradient(
        self, vector: ModelVector, inputs: Tensor, targets: Tensor, size: int, draw: torch.Generator
    ) -> Tensor:
        """(N,): of the mean loss of this batch, at the parameters that the model has. size: samples of the client."""
        return vector.gradient(self.loss(vector.model(inputs), targets))

    def train(
        self,
        vector: ModelVector,
        x: Tensor,
        data: tuple[Tensor, Tensor],
        steps: int,
        draw: torch.Generator,
        mu: float = 0.0,
        correction: Tensor | None = None,
    ) -> Tensor:
        """y (N,): where the client comes to from x. The model holds it afterwards.

        data: the client's inputs and targets;  draw: gives all that is random in the client's steps
        """
        inputs, targets = data
        y = x.clone()
        before = device.random_state()
        try:
            # what the model draws (dropout) is the client's too, not the rank's
            torch.manual_seed(seed_of(draw.initial_seed(), ("model",)) % 2**63)
            for batch in self.batches(len(inputs), steps, draw):
                vector.write(y)
                g = self.gradient(vector, inputs[batch], targets[batch], len(inputs), draw)
                if mu:
                    g = g + mu * (y - x)
                if correction is not None:
                    g = g + correction
                y = y - self.lr * g
        finally:
            device.set_random_state(before)
        vector.write(y)
        return y
