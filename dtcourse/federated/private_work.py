"""DP-SGD at each client: what the server learns of any one *sample* of a client is bounded.

    work = SampleLevelWork(loss, lr=0.5, steps=10, rate=0.1, max_norm=1.0, noise_multiplier=1.1, budget=Budget(8, 1e-4))
    FedAvg(model, clients, work, num_sampled=20)

    B   <- each of the client's n samples with probability `rate`          Poisson, as the accountant has it
    g   <- ( sum_B g_i min(1, C / |g_i|) + N(0, (z C)^2) ) / (rate n)      g_i: one sample's gradient
    y   <- y - lr g

A batch may be empty: then the step is noise alone, since a step left out would tell that. The divisor is rate n, which
is known beforehand, and not the size of the batch. n itself is taken for public, as FedAvg's weights tell it.

The bound holds against the server too, since the client adds the noise before anything is sent. It is for the samples;
the client as a whole (that it took part, what its samples have in common) is not hidden: client_level.py is for that.
The noise comes from the run's seed, so that a lesson gives the same numbers again; who knows the seed can take the
noise off. In production it comes from the system's secure generator.

Source: Abadi et al. (CCS 2016, arXiv 1607.00133), algorithm 1. Memory: N numbers for each sample of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dtcourse.federated.accountant import Accountant, Budget, BudgetSpent
from dtcourse.federated.client_work import ClientWork
from dtcourse.federated.clients import poisson_sample
from dtcourse.federated.clipping import clipped, noise_like, per_sample_gradients
from dtcourse.federated.vectors import ModelVector


@dataclass
class SampleLevelWork(ClientWork):
    """Local training that is private for each sample of a client. loss, lr, steps: as ClientWork's.

    rate:             q, the probability of a sample to be in a step's batch
    max_norm:         C, of one sample's gradient
    noise_multiplier: z; the noise's standard deviation is z C
    budget:           of each client; one whose budget is spent takes part no more. None: it is only counted
    accountants:      client -> what it has spent

    Every rank counts all clients, so they agree on who takes part.
    """

    rate: float = 0.1
    max_norm: float = 1.0
    noise_multiplier: float = 1.0
    budget: Budget | None = None
    accountants: dict[int, Accountant] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size is not None:
            raise ValueError(
                f"batches are drawn by rate (Poisson), so leave batch_size out; got {self.batch_size}"
            )
        check_private(self.rate, self.max_norm, self.noise_multiplier)
        self._fresh = Accountant()

    def refusal(self, client: int, size: int, steps: int) -> str:
        """As ClientWork's; and where the budget is spent. A client that is not refused has spent these steps."""
        if sentence := super().refusal(client, size, steps):
            return sentence
        if client not in self.accountants:
            own = self.accountants[client] = Accountant()
            own._one_step = self._fresh._one_step  # the same formula for all: worked out once
        accountant = self.accountants[client]
        if self.budget is not None:
            try:
                accountant.require(self.budget, self.rate, self.noise_multiplier, steps)
            except BudgetSpent as spent:
                return f"client {client} takes part no more: {spent}"
        accountant.spend(self.rate, self.noise_multiplier, steps)
        return ""

    def batches(self, size: int, steps: int, draw: torch.Generator) -> Iterator[Tensor]:
        for _ in range(steps):
            yield poisson_sample(size, self.rate, draw)

    def gradient(
        self, vector: ModelVector, inputs: Tensor, targets: Tensor, size: int, draw: torch.Generator
    ) -> Tensor:
        each = per_sample_gradients(vector, self.loss, inputs, targets)
        total = clipped(each, self.max_norm).sum(0)
        noise = noise_like(total, self.noise_multiplier * self.max_norm, draw)
        return (total + noise) / (self.rate * size)


def check_private(rate: float, max_norm: float, noise_multiplier: float) -> None:
    """Raises ValueError where these make no private sum."""
    if not 0 < rate <= 1 or not max_norm > 0 or not noise_multiplier >= 0:
        raise ValueError(
            f"rate is in (0, 1], max_norm above 0 and noise_multiplier 0 or more; got {rate}, {max_norm} and "
            f"{noise_multiplier}"
        )
