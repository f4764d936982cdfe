"""FedAvg: the clients of a round train on their own samples, and the server takes the mean of what they changed.

    federated = FedAvg(model, clients, ClientWork(loss, lr=0.1, steps=10, batch_size=16), num_sampled=20)
    for _ in range(100):
        report = federated.round()                # on all ranks; the model is the server's again afterwards

    S      <- some clients, drawn by the seed
    y_k    <- K steps of SGD from x on client k's samples                        for k in S
    x      <- x + sum_S n_k (y_k - x) / sum_S n_k

With one step on all samples of all clients this is one step of SGD on the whole data. With more, clients whose data
differ drift apart: they walk to their own minima, and the mean of these is none of the whole.

    mu > 0           FedProx: each step pulls back to x, so a client that takes many steps does not go far
    server=FedAdam() FedOpt: the mean change is the server's gradient
    compress=...     each client's change travels compressed; what is left out is not kept for later (no residual)

Source: McMahan et al. (AISTATS 2017, arXiv 1602.05629), algorithm 1; Li et al. (MLSys 2020, arXiv 1812.06127) for
FedProx, whose clients may do different numbers of steps (ClientWork.steps). Li et al. draw clients by their samples
and take a plain mean; here the mean is weighted, as in FedAvg, so mu = 0 is FedAvg.

Bytes between clients and server in a round, |S| clients, N bytes of parameters: |S| N down and |S| N up, or what the
compressor makes of it. Bytes that p ranks send to simulate it (ring): 2 (p - 1) (N + 8), however many clients there
are, since a rank adds up its own clients first; and their settings, which they compare before each round. Memory per
rank: 4 N besides the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtcourse.collectives import ring
from dtcourse.federated import settings
from dtcourse.federated.client_work import ClientWork
from dtcourse.federated.clients import Clients, generator, place_in
from dtcourse.federated.rounds import Round, UpdateCompressor, not_finite
from dtcourse.federated.server_optimizers import ServerOptimizer, ServerSGD
from dtcourse.federated.vectors import ModelVector
from dtcourse.parameters.agreement import check_agreed
from dtcourse.parameters.replicas import Group, broadcast_model
from dtcourse.parameters.seeds import seed_of


class FedAvg:
    """The server, and the clients that live on this rank.

    model:       the server's; the same on all ranks, since rank 0's is broadcast at the start (init_sync)
    clients, work: who has which samples, and what is done with them in a round
    num_sampled: clients of a round; None: all
    seed:        of all that is drawn: clients, and their batches
    mu:          FedProx's weight of the pull to x
    weighting:   "samples": n_k, so that the sum is the whole data's; "clients": each client counts as one
    server:      what is done with the mean change; ServerSGD(1): it is added
    compress:    seed -> compressor for one client's change: `lambda seed: TopK(0.01)`, `lambda seed: QSGD(seed=seed)`.
        The seed is of the round and the client; what adds its rank to it (QSGD) draws apart on another number of ranks

    A client that cannot take part (no data), or whose change is not finite, is skipped with a sentence in the report,
    and the round goes on. Where nobody is left, x stays as it is.
    """

    downs = ups = 1  # vectors to a client, and back

    def __init__(
        self,
        model: nn.Module,
        clients: Clients,
        work: ClientWork,
        num_sampled: int | None = None,
        seed: int = 0,
        *,
        mu: float = 0.0,
        weighting: str = "samples",
        server: ServerOptimizer | None = None,
        compress: Callable[[int], UpdateCompressor] | None = None,
        group: Group = None,
        init_sync: bool = True,
    ) -> None:
        if weighting not in ("samples", "clients"):
            raise ValueError(f'weighting is "samples" or "clients"; got {weighting!r}')
        if not mu >= 0:
            raise ValueError(f"mu is 0 (FedAvg) or more; got {mu}")
        self.num_sampled = len(clients) if num_sampled is None else num_sampled
        clients.drawn(self.num_sampled, seed, 0)  # raises where there are not so many
        self.vector, self.clients, self.work, self.seed = ModelVector(model), clients, work, seed
        self.mu, self.weighting, self.compress, self.group = mu, weighting, compress, group
        self.server = server or ServerSGD()
        self.rank, self.world_size = place_in(group)
        self.rounds = 0
        if self.world_size > 1:
            self._check_agreed(settings.of_data(clients) | self.settings())
            if init_sync:
                broadcast_model(model, group=group)
        self.x = self.vector.read()

    # --- a round --------------------------------------------------------------------------------------------

    def round(self) -> Round:
        """One round. All ranks call it. Raises ValueError on all of them where their settings differ."""
        report = Round(self.rounds, self.draw_clients(self.rounds))
        wanted = {k: self.work.steps_of(report.number, k) for k in report.drawn}
        if self.world_size > 1:
            now = {
                "drawn": report.drawn,
                "work.steps": list(wanted.values()),
                "work's spent": self.work.spent(report.drawn),
                "x": settings.number_of(self.x),
            }
            self._check_agreed(self.settings() | now)
        self.begin()
        steps = self._admit(report, wanted)
        try:
            total, weight = self.collect(report, steps)
            report.down_bytes += self.downs * self.vector.nbytes * len(report.drawn)
            delta = self.mean(total, weight)
            if delta is not None:
                self.x = self.server.step(self.x, delta)
        finally:  # after an error, too, the model is no client's
            self.vector.write(self.x)
        self.rounds += 1
        return report

    def settings(self) -> dict[str, Any]:
        """What all ranks are to be told alike."""
        return {
            "method": type(self).__qualname__,
            "num_sampled": self.num_sampled,
            "seed": self.seed,
            "mu": self.mu,
            "weighting": self.weighting,
            "compress": settings.name_of(self.compress),
            "server": settings.of_server(self.server),
            **settings.of_work(self.work),
        }

    def begin(self) -> None:
        """Before a round's first step; what it raises, it raises on every rank."""

    def collect(self, report: Round, steps: dict[int, int]) -> tuple[Tensor, float]:
        """The weighted sum of the clients' changes, and of their weights; the same on every rank.

        steps: of each client that takes part
        """
        mine, up_bytes, bad = torch.zeros_like(self.x), 0, {}
        for client in self.clients.living_on(self.rank, self.world_size, report.trained):
            change, nbytes = self.sent(self.trained(client, steps[client]), client)
            if sentence := not_finite(change, client):
                bad[client] = sentence
                continue
            up_bytes += nbytes
            mine += self.weight(client) * change
        # NaN tells the other ranks of a client that is left out
        total = torch.full_like(mine, torch.nan) if bad else mine.clone()
        self.sum_over_ranks(total)
        if not bool(total.isfinite().all()):
            self.leave_out(report, bad)
            self.sum_over_ranks(mine)
            total = mine
        numbers = torch.tensor([up_bytes], device=total.device)
        self.sum_over_ranks(numbers)
        # what is beside the change (SCAFFOLD) is not compressed
        beside = (self.ups - 1) * self.vector.nbytes * len(report.trained)
        report.up_bytes = int(numbers.item()) + beside
        return total, sum(self.weight(client) for client in report.trained)

    def leave_out(self, report: Round, bad: dict[int, str]) -> None:
        """Takes clients, with a sentence each, from those that have answered. bad: those of this rank."""
        came: list[Any] = [bad]
        if self.world_size > 1:
            came = [None] * self.world_size
            dist.all_gather_object(came, bad, group=self.group)
        everyone = {client: why for theirs in came for client, why in theirs.items()}
        report.skipped |= dict(sorted(everyone.items()))
        report.trained = [client for client in report.trained if client not in everyone]
        report.samples = sum(len(self.clients.parts[client]) for client in report.trained)

    def trained(self, client: int, steps: int) -> Tensor:
        """change_of a client in this round."""
        return self.change_of(client, steps, generator(self.seed, "work", self.rounds, client))

    def draw_clients(self, number: int) -> list[int]:
        """The clients that the server asks in this round."""
        return self.clients.drawn(self.num_sampled, self.seed, number)

    def weight(self, client: int) -> float:
        """How much a client counts."""
        return len(self.clients.parts[client]) if self.weighting == "samples" else 1

    def change_of(self, client: int, steps: int, draw: torch.Generator) -> Tensor:
        """(N,): y_k - x, of a client that lives here."""
        data = self.clients.of(client)
        return self.work.train(self.vector, self.x, data, steps, draw, self.mu) - self.x

    def mean(self, total: Tensor, weight: float) -> Tensor | None:
        """The mean change, from the weighted sum; None where nobody has sent any."""
        return total / weight if weight else None

    # --- its parts ------------------------------------------------------------------------------------------

    def _check_agreed(self, told: dict[str, Any]) -> None:
        advice = "Ranks simulate one federation: pass the same on every rank"
        check_agreed(told, self.group, advice)

    def _admit(self, report: Round, wanted: dict[int, int]) -> dict[int, int]:
        """Who takes part, and the steps of each: every rank finds the same without a message."""
        steps: dict[int, int] = {}
        for client, num in wanted.items():
            if sentence := self.work.refusal(client, len(self.clients.parts[client]), num):
                report.skipped[client] = sentence
            else:
                steps[client] = num
        report.trained = list(steps)
        report.samples = sum(len(self.clients.parts[client]) for client in steps)
        return steps

    def sent(self, change: Tensor, client: int) -> tuple[Tensor, int]:
        """What the server has of a change, and the bytes that brought it there."""
        if self.compress is None:
            return change, self.vector.nbytes
        seed = seed_of(self.seed, ("compress", self.rounds, client)) % 2**31
        compressor = self.compress(seed)
        payload = compressor.compress(change.to(compressor.takes))
        nbytes = sum(tensor.nbytes for tensor in payload.wire)
        return compressor.decompress(payload).to(change.dtype), nbytes

    def sum_over_ranks(self, tensor: Tensor) -> None:
        """Replaces it by its sum over the ranks, on which the clients live."""
        if self.world_size > 1:
            ring.all_reduce(tensor, op=dist.ReduceOp.SUM, group=self.group)
