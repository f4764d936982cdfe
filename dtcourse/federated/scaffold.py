"""SCAFFOLD: clients that know in which direction the others go, and correct their own by it.

    federated = Scaffold(model, clients, ClientWork(loss, lr=0.1, steps=10), num_sampled=20)
    federated.round()

    y      <- y - lr (g_k(y) - c_k + c)                      in each of the K steps of client k, from x
    c_k'   =  c_k - c + (x - y_k) / (K lr)                   option II: the mean gradient of its steps
    x      <- x + lr_server sum_S w_k (y_k - x) / sum_S w_k
    c      <- c + sum_S w_k (c_k' - c_k) / sum_all w_k

c_k is where client k's gradient usually points, c the mean of all c_k. In FedAvg g_k pulls y to the client's own
minimum; less c_k and plus c it pulls to everyone's. Each client keeps c_k from round to round, so SCAFFOLD is for
clients that come again: one that is drawn for the first time has c_k = 0, and is corrected by c alone.

Source: Karimireddy et al. (ICML 2020, arXiv 1910.06378), algorithm 1, option II. There w_k = 1; here w_k = n_k unless
weighting="clients", so that what is minimised is the mean over samples, as in FedAvg.

Bytes in a round: twice FedAvg's, x and c down, y_k - x and c_k' - c_k up. Ranks send 2 (p - 1) (2 N + 8) (ring).
Memory: N for c, and N for each client that a rank has ever done the work of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dtcourse.federated.client_work import ClientWork
from dtcourse.federated.clients import Clients
from dtcourse.federated.fedavg import FedAvg
from dtcourse.federated.rounds import Round


class Scaffold(FedAvg):
    """FedAvg with control variates. Arguments as FedAvg's; there is no mu, and only the model's change is compressed.

    c:   (N,), the server's control variate
    own: client -> c_k (N,), of the clients that live on this rank
    """

    downs = ups = 2

    def __init__(
        self,
        model: nn.Module,
        clients: Clients,
        work: ClientWork,
        num_sampled: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        if options.get("mu"):
            raise ValueError("SCAFFOLD has a correction in place of FedProx's mu: leave mu out")
        super().__init__(model, clients, work, num_sampled, seed, **options)
        self.c = torch.zeros_like(self.x)
        self.own: dict[int, Tensor] = {}
        self._c_change = torch.zeros_like(self.x)
        # of all clients, those of other rounds too
        self._all_weights = sum(self.weight(client) for client in range(len(clients)))

    def round(self) -> Round:
        """One round. All ranks call it."""
        self._c_change.zero_()
        report = super().round()
        self.sum_over_ranks(self._c_change)
        self.c += self._c_change / self._all_weights
        return report

    def change_of(self, client: int, steps: int, draw: torch.Generator) -> Tensor:
        """(N,): y_k - x; and c_k becomes c_k'."""
        before = self.own.get(client, torch.zeros_like(self.x))
        data = self.clients.of(client)
        y = self.work.train(self.vector, self.x, data, steps, draw, correction=self.c - before)
        if not bool(y.isfinite().all()):
            return y  # it is left out, and keeps its c_k
        after = before - self.c + (self.x - y) / (steps * self.work.lr)
        self.own[client] = after
        self._c_change += self.weight(client) * (after - before)
        return y - self.x

    def control_variates(self, among: Sequence[int]) -> Tensor:
        """(len(among), N): c_k of clients that live here; zero where a client has not taken part yet.

        Raises ValueError where a client lives on another rank, which has its c_k.
        """
        for k in among:
            if k % self.world_size != self.rank:
                raise ValueError(
                    f"client {k} lives on rank {k % self.world_size}, and this is rank {self.rank}: ask there"
                )
        zero = torch.zeros_like(self.x)
        return torch.stack([self.own.get(client, zero) for client in among])
