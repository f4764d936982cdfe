"""DP-SGD at each client: what the server learns of any one *sample* of a client is bounded.

    work = SampleLevelWork(loss, lr=0.5, steps=10, rate=0.1, max_norm=1.0, noise_multiplier=1.1, budget=Budget(8, 1e-4))
    FedAvg(model, clients, work, num_sampled=20)

    B   <- each of the client's n samples with probability `rate`          Poisson, as the accountant has it
    g   <- ( sum_B g_i min(1, C / |g_i|) + N(0, (z C)^2) ) / (rate n)      g_i: one sample's gradient
    y   <- y - lr g

A batch may be empty: then the step is noise alone, since a step left out would tell that. The divisor is rate n, which
is known beforehand, and not the size of the batch. n itself is taken for public, as FedAvg's weights tell it.

The bound holds against the server too, since the client adds the noise before anything is sent, and nobody else knows
which batches were drawn. It is for the samples; the client as a whole (that it took part, what its samples have in
common) is not hidden: client_level.py is for that. Noise and batches come from the system's generator
(system_random.py), unless noise_seed is given. What is left out: the last digits of a float's noise tell of what it was
added to (Mironov, CCS 2012); production adds whole numbers.

Source: Abadi et al. (CCS 2016, arXiv 1607.00133), algorithm 1. Memory: N numbers for each sample of a batch.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dtcourse.federated.accountant import Accountant, Budget, BudgetSpent
from dtcourse.federated.client_work import ClientWork
from dtcourse.federated.clients import generator, poisson_sample
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
    noise_seed:       of noise and batches. None: they are the system's, as privacy needs it; a number makes a run that
        can be repeated, and whose noise anybody can take off who has the number, or tries all 2^32

    Every rank counts all clients, so they agree on who takes part.
    """

    rate: float = 0.1
    max_norm: float = 1.0
    noise_multiplier: float = 1.0
    budget: Budget | None = None
    accountants: dict[int, Accountant] = field(default_factory=dict, compare=False)
    noise_seed: int | None = None

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

    def spent(self, clients: Sequence[int]) -> list[str]:
        of_them = (self.accountants.get(client, self._fresh) for client in clients)
        return [accountant.summary() for accountant in of_them]

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
        """As ClientWork's; which samples are drawn, and the noise, is not the run's seed's to say."""
        if self.noise_seed is None:
            secret = torch.Generator().manual_seed(secrets.randbits(63))
        else:
            secret = generator(self.noise_seed, "private", draw.initial_seed())
        return super().train(vector, x, data, steps, secret, mu, correction)

    def batches(self, size: int, steps: int, draw: torch.Generator) -> Iterator[Tensor]:
        for _ in range(steps):
            yield poisson_sample(size, self.rate, self._secret(draw))

    def gradient(
        self, vector: ModelVector, inputs: Tensor, targets: Tensor, size: int, draw: torch.Generator
    ) -> Tensor:
        each = per_sample_gradients(vector, self.loss, inputs, targets)
        total = clipped(each, self.max_norm).sum(0)
        noise = noise_like(total, self.noise_multiplier * self.max_norm, self._secret(draw))
        return (total + noise) / (self.rate * size)

    def _secret(self, draw: torch.Generator) -> torch.Generator | None:
        """What noise and batches are drawn from."""
        return None if self.noise_seed is None else draw


def check_private(rate: float, max_norm: float, noise_multiplier: float) -> None:
    """Raises ValueError where these make no private sum."""
    if not 0 < rate <= 1 or not 0 < max_norm < math.inf or not 0 <= noise_multiplier < math.inf:
        raise ValueError(
            f"rate is in (0, 1], max_norm above 0 and finite, noise_multiplier 0 or more and finite; got {rate}, "
            f"{max_norm} and {noise_multiplier}"
        )
