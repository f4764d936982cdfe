"""Many clients on few ranks: each client has its own samples, and lives on one rank, which does its work in turn.

    clients = Clients(images, labels, parts)      # parts[k]: the indices of client k's samples, as label_skew gives
    clients.drawn(20, seed, number)               # the clients of a round: the same list on every rank
    clients.living_on(rank, world_size)           # client k lives on rank k mod p, so p need not divide the clients

Whatever a client draws comes from seed, round and its own number, never from its rank. So a run on four ranks is the
same run as on one, but for the order of the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.federated import system_random
from dtcourse.parameters.replicas import Group
from dtcourse.parameters.seeds import seed_of


@dataclass(frozen=True)
class Clients:
    """Who has which samples.

    inputs, targets: of all clients, samples first; each rank has them at hand, and reads only those of its clients
    parts:           the indices of each client's samples; a client may have none
    """

    inputs: Tensor
    targets: Tensor
    parts: Sequence[Tensor]

    def __post_init__(self) -> None:
        if not len(self.parts):
            raise ValueError("there are no clients: parts is empty")
        if len(self.inputs) != len(self.targets):
            raise ValueError(f"{len(self.inputs)} inputs have {len(self.targets)} targets")
        everyone = torch.cat(list(self.parts))
        if len(everyone) and not 0 <= int(everyone.min()) <= int(everyone.max()) < len(self.inputs):
            raise ValueError(
                f"the parts have indices from {int(everyone.min())} to {int(everyone.max())}, and there are "
                f"{len(self.inputs)} samples"
            )
        if len(everyone.unique()) < len(everyone):
            twice = len(everyone) - len(everyone.unique())
            raise ValueError(
                f"a sample belongs to one client; {twice} indices of the parts come more than once"
            )

    def __len__(self) -> int:
        return len(self.parts)

    @property
    def sizes(self) -> list[int]:
        """How many samples each client has."""
        return [len(part) for part in self.parts]

    def of(self, client: int) -> tuple[Tensor, Tensor]:
        """The client's own inputs and targets."""
        return self.inputs[self.parts[client]], self.targets[self.parts[client]]

    def label_counts(self, num_classes: int) -> Tensor:
        """(clients, num_classes): how many samples of each class a client has."""
        return torch.stack([self.targets[p].bincount(minlength=num_classes) for p in self.parts])

    # --- who takes part -------------------------------------------------------------------------------------

    def drawn(self, num_clients: int, seed: int, number: int) -> list[int]:
        """So many clients for round `number`, each as likely as any other, no client twice; sorted."""
        if not 1 <= num_clients <= len(self):
            raise ValueError(
                f"a round has 1 to {len(self)} clients, as many as there are; got {num_clients}"
            )
        order = torch.randperm(len(self), generator=generator(seed, "clients", number))
        return sorted(order[:num_clients].tolist())

    def drawn_by_poisson(self, rate: float, seed: int | None, number: int) -> list[int]:
        """Each client takes part with probability `rate`, on its own: how many do is drawn too, and may be none.

        seed: None where nobody may be able to draw them again; ranks then draw different ones
        """
        if not 0 < rate <= 1:
            raise ValueError(
                f"rate is the probability to take part, above 0 and at most 1; got {rate}"
            )
        draw = None if seed is None else generator(seed, "clients", number)
        return poisson_sample(len(self), rate, draw).tolist()

    def living_on(
        self, rank: int, world_size: int, among: Sequence[int] | None = None
    ) -> list[int]:
        """Those of `among` (all) that the rank does the work of."""
        return [k for k in (range(len(self)) if among is None else among) if k % world_size == rank]


def poisson_sample(num: int, rate: float, draw: torch.Generator | None) -> Tensor:
    """The indices of those of `num` that take part, each with probability `rate` and whatever the others do.

    draw: None where nobody may be able to draw them again (system_random.py)

    This is the sampling that the accountant's formula is of (accountant.py). Batches of a fixed size are not, nor is an
    epoch's order cut into batches.
    """
    # in double: the probability is `rate` to 53 bits
    if draw is None:
        coins = system_random.uniform((num,))
    else:
        coins = torch.rand(num, generator=draw, dtype=torch.float64)
    return (coins < rate).nonzero().flatten()


def generator(seed: int, *place: object) -> torch.Generator:
    """What is drawn at a place of the run: the same on every rank that asks."""
    return torch.Generator().manual_seed(seed_of(seed, place) % 2**63)


def place_in(group: Group = None) -> tuple[int, int]:
    """(rank, world size); (0, 1) where no group has been formed, such as in a notebook's own cell."""
    if not dist.is_initialized():
        return 0, 1
    return dist.get_rank(group), dist.get_world_size(group)
