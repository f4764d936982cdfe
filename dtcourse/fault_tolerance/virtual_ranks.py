"""Virtual ranks: training that gives the same bits on any number of ranks.

    model = VirtualRanks(module, 4)                  # on 1, 2, 3 or 4 ranks
    for x in samples_of_each_step:                   # {virtual rank: its batch}, for those in model.mine
        model.backward(lambda virtual: loss(model(x[virtual])))
        optimizer.step()

A run on two ranks instead of four adds the same gradients in another order, and draws other dropout masks: the same
training, and other numbers. Here the work of a step is cut into a fixed number of shards, the virtual ranks, whoever
computes them. Each has its own samples and its own random state. Their gradients are added along a fixed tree,
((0 + 1) + (2 + 3)), by whoever holds them:

    virtual rank      0     1     2     3
                      +-----+     +-----+        4 ranks: both are sent;  2 ranks: neither
                         +-----------+           1 rank:  nothing is sent

Where two parts lie on one rank it adds them, else one is sent. The same pairs are added in each case, so the sum is the
same to the bit. The run may stop on four ranks and go on on two. Source: Li et al., EasyScale (SC 2023), whose workers
take turns on a GPU as virtual ranks do here.

Like DistributedDataParallel it holds the whole model on each rank, and besides a gradient for each of its virtual ranks
until they are added: N elements each. Messages: one of N + 1 elements for each pair on two ranks (with 4 virtual ranks
p - 1), then a broadcast of as many. Nothing overlaps, and a ring would send less: it is exact first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import device
from dtcourse.parameters.plain_replica import (
    require_all_here,
    require_outermost,
    require_own_gradients,
)
from dtcourse.parameters.replicas import Group, broadcast_model
from dtcourse.parameters.seeds import seed_of
from dtcourse.parameters.slices import require_replicas
from dtcourse.parameters.wrapper import Wrapper


class VirtualRanks(Wrapper):
    """Wraps `module`: `backward` leaves the mean of all virtual ranks' gradients in every parameter, on every rank.

    virtual_ranks: into how many shards a step is cut, at least as many as there are ranks
    seed:          of the random states: each virtual rank begins with one of its own
    group:         the ranks that compute; default: all

    mine:          the virtual ranks that this rank computes: a sampler of each is DistributedSampler(data,
                   virtual_ranks, virtual)

    Buffers (running statistics) are those of virtual rank 0, which all begin a step with, as DistributedDataParallel's
    are rank 0's. state_dict of `states` belongs into a TrainingState's `shared`: it is gathered from all.
    Raises ValueError for fewer virtual ranks than ranks, a model that is cut over the group, and one whose gradients a
    wrapper averages.
    """

    def __init__(
        self, module: nn.Module, virtual_ranks: int, seed: int = 0, group: Group = None
    ) -> None:
        super().__init__()
        world_size = dist.get_world_size(group)
        if isinstance(virtual_ranks, bool) or not isinstance(virtual_ranks, int):
            raise ValueError(f"virtual_ranks is a whole number; got {virtual_ranks!r}")
        if virtual_ranks < world_size:
            raise ValueError(
                f"{virtual_ranks} virtual ranks cannot be given to {world_size} ranks: each needs one at least. Start "
                f"{virtual_ranks} ranks, or cut the step finer"
            )
        require_all_here(module, type(self).__name__, "Pass it a model that is not cut")
        require_replicas(module.named_parameters(), group, type(self).__name__)
        _require_own_gradients(module)
        broadcast_model(module, group=group)
        self.module, self.virtual_ranks, self.group = module, virtual_ranks, group
        self.holders = holders(virtual_ranks, world_size)
        rank = dist.get_rank(group)
        self.mine = [v for v, holder in enumerate(self.holders) if holder == rank]
        self.states = VirtualStates(self, seed)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """The wrapped module's."""
        require_outermost(type(self).__name__)
        return self.module(*inputs, **keywords)

    def backward(self, loss_of: Callable[[int], torch.Tensor]) -> torch.Tensor:
        """Runs this rank's virtual ranks one after another; returns the mean of all losses, the same bits on all ranks.

        loss_of: the loss of a virtual rank's own samples, a mean over them; called once for each in `mine`

        Raises ValueError where a wrapper averages the gradients as well.
        """
        _require_own_gradients(self.module)
        trained = [p for p in self.module.parameters() if p.requires_grad]
        before = [buffer.clone() for buffer in self.module.buffers()]
        after_first = before
        parts: dict[int, torch.Tensor] = {}
        for virtual in self.mine:
            for buffer, value in zip(self.module.buffers(), before, strict=True):
                buffer.data.copy_(value)
            for parameter in trained:
                parameter.grad = None
            with self.states.of(virtual):
                loss = loss_of(virtual)
                loss.backward()  # type: ignore[no-untyped-call]
            if virtual == 0:
                after_first = [buffer.clone() for buffer in self.module.buffers()]
            parts[virtual] = _flat(trained, loss)
        total = self._sum(parts, trained) / self.virtual_ranks
        self._share_buffers(after_first)
        at = 0
        for parameter in trained:
            part = total[at : at + parameter.numel()]
            parameter.grad = part.view(parameter.shape).to(parameter.dtype, copy=True)
            at += parameter.numel()
        return total[-1]

    def _sum(self, parts: dict[int, torch.Tensor], trained: list[nn.Parameter]) -> torch.Tensor:
        """The sum of all parts along the tree, on every rank."""
        rank = dist.get_rank(self.group)
        for left, right in pairs(self.virtual_ranks):
            to, of = self.holders[left], self.holders[right]
            if rank == of != to:
                dist.send(parts.pop(right), group=self.group, group_dst=to)
            elif rank == to:
                other = parts.pop(right) if of == to else _received(trained, of, self.group)
                parts[left] = parts[left] + other
        total = parts[0] if rank == self.holders[0] else _room(trained)
        dist.broadcast(total, group=self.group, group_src=self.holders[0])
        return total

    def _share_buffers(self, of_first: list[torch.Tensor]) -> None:
        for buffer, value in zip(self.module.buffers(), of_first, strict=True):
            buffer.data.copy_(value)
            dist.broadcast(buffer, group=self.group, group_src=self.holders[0])


def _require_own_gradients(module: nn.Module) -> None:
    """A wrapper may have come since: asked at each step."""
    instead = "Pass the module without it, and let go of the wrapper first (del wrapper)"
    require_own_gradients(module, "VirtualRanks", instead)


def holders(virtual_ranks: int, world_size: int) -> list[int]:
    """Which rank computes each virtual rank: runs of them, the first ranks' longer by one where they do not divide."""
    each, more = divmod(virtual_ranks, world_size)
    return [rank for rank in range(world_size) for _ in range(each + (rank < more))]


def pairs(virtual_ranks: int) -> list[tuple[int, int]]:
    """The additions in their order: (left, right), the sum is the new left. The last one's left is 0."""
    found, distance = [], 1
    while distance < virtual_ranks:
        found += [
            (left, left + distance) for left in range(0, virtual_ranks - distance, 2 * distance)
        ]
        distance *= 2
    return found


class VirtualStates:
    """The random states of all virtual ranks, in state_dict's shape: the same on all ranks, whoever has drawn."""

    def __init__(self, model: VirtualRanks, seed: int) -> None:
        self._model = model
        self._states: dict[int, Any] = {}
        outside = device.random_state()
        for virtual in model.mine:
            torch.manual_seed(seed_of(seed, [virtual]))
            self._states[virtual] = device.random_state()
        device.set_random_state(outside)

    def of(self, virtual: int) -> _Drawing:
        """A block in which torch draws from a virtual rank's state; what is outside is as it was, afterwards."""
        return _Drawing(self._states, virtual)

    def state_dict(self) -> dict[str, Any]:
        """All virtual ranks' states. A collective: every rank calls it."""
        everyone: list[Any] = [None] * dist.get_world_size(self._model.group)
        dist.all_gather_object(everyone, self._states, group=self._model.group)
        together = {virtual: state for mine in everyone for virtual, state in mine.items()}
        return {"states": [together[virtual] for virtual in sorted(together)]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes those of this rank's virtual ranks. ValueError for another number of them."""
        states = state["states"]
        if len(states) != self._model.virtual_ranks:
            raise ValueError(
                f"the checkpoint is of {len(states)} virtual ranks, and this run has {self._model.virtual_ranks}: the "
                "same bits need the same shards"
            )
        self._states.update({virtual: states[virtual] for virtual in self._model.mine})


class _Drawing:
    def __init__(self, states: dict[int, Any], virtual: int) -> None:
        self._states, self._virtual = states, virtual

    def __enter__(self) -> None:
        self._outside = device.random_state()
        device.set_random_state(self._states[self._virtual])

    def __exit__(self, *_: object) -> None:
        self._states[self._virtual] = device.random_state()
        device.set_random_state(self._outside)


def _flat(trained: list[nn.Parameter], loss: torch.Tensor) -> torch.Tensor:
    """All gradients in one vector, zeros where there is none, and the loss at its end."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    return torch.cat([*(g.flatten() for g in found), loss.detach().reshape(1).to(found[0])])


def _room(trained: list[nn.Parameter]) -> torch.Tensor:
    return trained[0].new_empty(sum(p.numel() for p in trained) + 1).detach()


def _received(trained: list[nn.Parameter], of: int, group: Group) -> torch.Tensor:
    part = _room(trained)
    dist.recv(part, group=group, group_src=of)
    return part
