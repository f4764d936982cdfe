"""FedAvg whose server sees no client's change: sums go through secure aggregation.

    federated = SecureFedAvg(model, clients, work, num_sampled=20, threshold=12)
    report = federated.round()

Each client sends n_k (y_k - x) and n_k, masked, so the server has the weighted sum and the sum of the weights, and
divides. Where the aggregation stops (fewer clients than the threshold), the report says why, and x stays as it is.

The sum is hidden no further, and the server chooses what is trained: one that sends a client the model, and all others
one that learns nothing, has that client's change as the sum (Pasquini et al., CCS 2022). Clients would have to compare
the models that they were sent; these here do not.

Bytes: a client sends 8 (N + 1) of masked numbers (4 (N + 1) with bits=32) and what secure/protocol.py says besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dtcourse.federated.client_work import ClientWork
from dtcourse.federated.clients import Clients
from dtcourse.federated.fedavg import FedAvg
from dtcourse.federated.rounds import Round, not_finite
from dtcourse.federated.secure import FixedPoint, SecureSum, Stopped, secure_sum


class SecureFedAvg(FedAvg):
    """FedAvg with secure aggregation. Arguments as FedAvg's, and:

    threshold: t, so many of a round's clients must stay to the end: more than half of those that are asked
    encoding:  how numbers are rounded; FixedPoint(32, 64)
    dropouts:  client -> the round of the protocol before which it stops answering; may be changed between rounds
    last:      what the last round's aggregation gave, with the server's view; None where it stopped
    """

    def __init__(
        self,
        model: nn.Module,
        clients: Clients,
        work: ClientWork,
        num_sampled: int | None = None,
        seed: int = 0,
        *,
        threshold: int,
        encoding: FixedPoint | None = None,
        dropouts: Mapping[int, str] | None = None,
        **options: Any,
    ) -> None:
        if options.get("compress"):
            raise ValueError(
                "masked numbers look like chance, which no compressor makes smaller, and sums of compressed ones are "
                "not to be had: leave compress out, or take fewer bits in the encoding"
            )
        asked = len(clients) if num_sampled is None else num_sampled
        least = max(2, asked // 2 + 1)
        if not least <= threshold <= asked:
            raise ValueError(
                f"the threshold is more than half of the {asked} clients of a round, {least} to {asked}; "
                f"got {threshold}"
            )
        self.threshold, self.encoding = threshold, encoding or FixedPoint(32, 64)
        self.dropouts: dict[int, str] = dict(dropouts or {})
        self.last: SecureSum | None = None
        super().__init__(model, clients, work, num_sampled, seed, **options)

    def settings(self) -> dict[str, Any]:
        return super().settings() | {
            "threshold": self.threshold,
            "encoding": self.encoding,
            "dropouts": dict(sorted(self.dropouts.items())),
        }

    def collect(self, report: Round, steps: dict[int, int]) -> tuple[Tensor, float]:
        """The sums, as the server has them."""
        vectors, bad, self.last = {}, {}, None
        for client in self.clients.living_on(self.rank, self.world_size, report.trained):
            weight = self.x.new_tensor([self.weight(client)])
            vector = torch.cat([weight * self.trained(client, steps[client]), weight])
            if not (sentence := not_finite(vector, client)):
                try:
                    self.encoding.encode(vector, len(report.trained))
                except ValueError as error:
                    sentence = f"client {client} is left out, and the round goes on: {error}"
            if sentence:
                bad[client] = sentence
            else:
                vectors[client] = vector
        self.leave_out(report, bad)
        try:
            self.last = found = secure_sum(
                vectors, self.threshold, len(report.trained), self.encoding,
                dropouts=self.dropouts, group=self.group,
            )  # fmt: skip
        except Stopped as stopped:
            report.skipped |= dict.fromkeys(report.trained, str(stopped))
            report.trained, report.samples = [], 0
            return torch.zeros_like(self.x), 0.0
        report.skipped |= {k: why for k, why in found.lost.items() if k not in found.survivors}
        report.trained = found.survivors
        report.samples = sum(len(self.clients.parts[k]) for k in found.survivors)
        report.up_bytes = sum(found.nbytes.values())
        total = found.total.to(device=self.x.device)
        return total[:-1].to(self.x.dtype), float(total[-1])
