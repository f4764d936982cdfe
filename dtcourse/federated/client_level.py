"""DP-FedAvg: what the finished model tells of any one *client*, with all its samples, is bounded.

    federated = ClientLevelFedAvg(model, clients, work, rate=0.1, max_norm=1.0, noise_multiplier=1.0,
                                  budget=Budget(8, 1e-3))
    federated.round()

    S  <- each of K clients with probability q                              Poisson, as the accountant has it
    d  <- ( sum_S (y_k - x) min(1, C / |y_k - x|) + N(0, (z C)^2) ) / (q K)
    x  <- x + d

All clients count alike, since a client with many samples would have to be bounded too. The divisor is q K and not the
number of clients that came, which would tell who came. Without any client the step is noise alone.

The server adds the noise, so it is trusted: it sees each client's change. What it gives out is private. Secure
aggregation hides the changes from the server, and bounds nothing that the sum tells: the two are for different things.
Who takes part, and the noise, are the server's secret: they come from the system's generator (system_random.py), and
not from the run's seed, unless noise_seed is given. See private_work.py for what is left out.

Source: McMahan et al. (ICLR 2018, arXiv 1710.06963), algorithm 1 with the fixed-denominator estimator.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from dtcourse.federated.accountant import Accountant, Budget
from dtcourse.federated.client_work import ClientWork
from dtcourse.federated.clients import Clients, generator
from dtcourse.federated.clipping import clipped, noise_like
from dtcourse.federated.fedavg import FedAvg
from dtcourse.federated.private_work import check_private


class ClientLevelFedAvg(FedAvg):
    """FedAvg with clipped changes, clients drawn by Poisson sampling, and noise on the sum.

    rate:             q, the probability of a client to take part in a round
    max_norm:         C, of one client's change
    noise_multiplier: z; the noise's standard deviation is z C
    budget:           round() raises BudgetSpent before it would pass this. None: it is only counted
    noise_seed:       of the noise, where `seed` draws the clients. None: both are the system's, as privacy needs it; a
        number makes a run that can be repeated, and whose noise anybody can take off who has the number
    accountant:       what the rounds have told
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Clients,
        work: ClientWork,
        seed: int = 0,
        *,
        rate: float,
        max_norm: float,
        noise_multiplier: float,
        budget: Budget | None = None,
        noise_seed: int | None = None,
        **options: Any,
    ) -> None:
        check_private(rate, max_norm, noise_multiplier)
        if options.setdefault("weighting", "clients") != "clients":
            raise ValueError('client-level privacy counts all clients alike: weighting="clients"')
        self.rate, self.max_norm, self.noise_multiplier = rate, max_norm, noise_multiplier
        self.budget, self.accountant, self.noise_seed = budget, Accountant(), noise_seed
        super().__init__(model, clients, work, None, seed, **options)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {
            "rate": self.rate,
            "max_norm": self.max_norm,
            "noise_multiplier": self.noise_multiplier,
            "budget": self.budget,
            "noise_seed": self.noise_seed,
            "spent": self.accountant.summary(),
        }

    def begin(self) -> None:
        """Raises BudgetSpent where the budget does not allow the round."""
        if self.budget is not None:
            self.accountant.require(self.budget, self.rate, self.noise_multiplier)
        self.accountant.spend(self.rate, self.noise_multiplier)

    def draw_clients(self, number: int) -> list[int]:
        """Each client on its own: their number is drawn too."""
        if self.noise_seed is not None:
            return self.clients.drawn_by_poisson(self.rate, self.seed, number)
        drawn = [self.clients.drawn_by_poisson(self.rate, None, number)]
        if self.world_size > 1:
            dist.broadcast_object_list(drawn, group=self.group, group_src=0)
        return drawn[0]

    def sent(self, change: Tensor, client: int) -> tuple[Tensor, int]:
        """As FedAvg's, and clipped: last of all, so that no compressor makes it longer."""
        change, nbytes = super().sent(change, client)
        return clipped(change.unsqueeze(0), self.max_norm).squeeze(0), nbytes

    def mean(self, total: Tensor, weight: float) -> Tensor:
        """The noisy sum by the number of clients that is expected: the same noise on every rank."""
        seed = self.noise_seed
        draw = None if seed is None else generator(seed, "noise", self.rounds)
        noise = noise_like(total, self.noise_multiplier * self.max_norm, draw)
        if draw is None and self.world_size > 1:
            dist.broadcast(noise, group=self.group, group_src=0)
        return (total + noise) / (self.rate * len(self.clients))
