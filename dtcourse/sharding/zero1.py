"""ZeRO-1: every rank keeps optimizer state for its own parameters only, and updates only those.

    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)    # PyTorch's shape of API
    loss(ddp_model(x), y).backward()       # gradients averaged over the ranks, by whichever means
    optimizer.step()                       # own parameters updated, then everyone sends its own to all

Adam keeps two numbers for each parameter, and data parallelism keeps them p times. An update needs the gradient, the
state and the value of its own parameter alone, so p ranks can share out the updates. Source: Rajbhandari et al., ZeRO
(SC 2020, arXiv 1910.02054), stage P_os.

A rank holds optimizer states of N_r elements, those it owns, not N (with Adam in float32 8 N_r bytes, not 8 N). All
ranks together send (p - 1) N elements of parameters in a step (ring). After DDP, whose all-reduce sends 2 (p - 1) N,
that is 1.5 times DDP's volume; with `reduce_gradients`, which sends each gradient to its owner alone, 1.0 times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Joinable, JoinHook
from torch.optim import Optimizer

from dtcourse import events
from dtcourse.parameters.buckets import Bucket
from dtcourse.parameters.cuts import Owners
from dtcourse.parameters.naming import named_in_groups
from dtcourse.parameters.placement import place_gradients
from dtcourse.parameters.replicas import Group
from dtcourse.parameters.same_model import check_same
from dtcourse.parameters.slices import require_replicas, require_unsharded
from dtcourse.sharding.exchange import reduce_to_owners, spread_from_owners
from dtcourse.sharding.optimizer_states import (
    built_with,
    check_as_built,
    copy_options,
    on_cpu,
    own_piece,
    parameters_of,
    states_of,
    whole_states,
)
from dtcourse.sharding.partition import assign_owners, by_turns, in_buckets
from dtcourse.torch_private import joining, joins_first

BUCKET_BYTES = 4 << 20  # of parameters in one message; p of them are under way at once


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """Runs `optimizer_class` on this rank's share of the parameters, and keeps all ranks' parameters equal.

    params:          parameters, named parameters or groups of them, as for any optimizer; the same on every rank
    optimizer_class: any optimizer whose update of a parameter looks at that parameter alone (all of torch.optim but
                     LBFGS)
    process_group:   the ranks that share the work; default: all
    defaults:        the optimizer's own options (lr=..., betas=...)

    owner: {parameter: rank of the group that updates it}. Hyperparameters are read from `param_groups` at each step,
    so learning-rate schedulers work. Gradients must be averaged before `step`: by DDP, by `reduce_gradients` or by
    ShardedDataParallel (ZeRO-2). Raises ValueError if the ranks pass different parameters, or none, or slices of which
    the ranks hold different ones.

    Frozen parameters cost nothing, so they are dealt out apart; one that is unfrozen later is updated from then on (a
    wrapper has to be made again for it). Uneven inputs: Join([ddp_model, optimizer]), in that order.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        process_group: Group = None,
        **defaults: Any,
    ) -> None:
        if issubclass(optimizer_class, torch.optim.LBFGS):
            raise ValueError(
                "LBFGS looks at all parameters at once, so its update cannot be shared out: use a plain LBFGS"
            )
        self.process_group = process_group or dist.group.WORLD
        self.rank = dist.get_rank(self.process_group)
        self.world_size = dist.get_world_size(self.process_group)
        if self.rank < 0:
            raise ValueError("this rank is not in process_group, so it has no share of the work")
        self.owner: dict[torch.Tensor, int] = {}
        self._trained_elements = [0] * self.world_size
        self._frozen_elements = [0] * self.world_size
        self._changing: set[torch.Tensor] = set()  # trained now or before: a step may change them
        # What reduce_gradients has left here.
        self._means: dict[torch.Tensor, torch.Tensor | None] = {}
        self._local: Optimizer | None = None
        self._consolidated: dict[str, Any] | None = None

        Joinable.__init__(self)
        Optimizer.__init__(self, params, defaults)  # calls add_param_group for each group
        self._check_same(self.param_groups)
        self._local = optimizer_class([self._owned_group(g) for g in self.param_groups], **defaults)
        self._local.state = self.state  # one state, seen through both
        self.defaults = self._local.defaults
        copy_options(self._local.param_groups, self.param_groups)
        self._built_with = built_with(self.param_groups)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters: every rank calls it with the same ones. Owners of the earlier ones stay."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        for trained, elements in ((True, self._trained_elements), (False, self._frozen_elements)):
            parameters = [p for p in group["params"] if p.requires_grad == trained]
            owners = assign_owners([p.numel() for p in parameters], self.world_size, elements)
            for parameter, owner in zip(parameters, owners, strict=True):
                self.owner[parameter] = owner
                elements[owner] += parameter.numel()
            if trained:
                self._changing.update(parameters)
        if self._local is not None:
            self._check_same([group])
            self._local.add_param_group(self._owned_group(group))
            self._built_with = built_with(self.param_groups)

    def owned(self, rank: int | None = None) -> list[torch.Tensor]:
        """The parameters that a rank of the group updates (default: this one), in the order of the groups."""
        rank = self.rank if rank is None else rank
        return [p for group in self.param_groups for p in group["params"] if self.owner[p] == rank]

    def owners(self, parameter: torch.Tensor) -> Owners | None:
        """On which rank of the group its state is, and the mean gradient that reduce_gradients leaves."""
        rank = self.owner.get(parameter)
        return None if rank is None else Owners(rank, self.process_group)

    # --- one step -------------------------------------------------------------------------------------------

    def reduce_gradients(self) -> None:
        """Sends the mean of all ranks' gradients to the owners alone. In place of DDP: between backward and step.

        Afterwards a parameter has a gradient on its owner, and None elsewhere. One that has no gradient on this rank
        counts as zero, since it may have one on another.
        """
        if joining(self):
            raise ValueError(
                "inside Join, a rank without data shadows "
                "DistributedDataParallel's averages and this optimizer's steps, not reduce_gradients(): wrap the "
                "model in DistributedDataParallel, and pass both to Join"
            )
        if any(p.grad is mean for p, mean in self._means.items()):
            raise RuntimeError(
                "gradients were added to a mean, which would be averaged again: run all micro-batches first and call "
                "reduce_gradients() once before step(), or wrap the model in ShardedDataParallel"
            )
        trained = {p for p in self.owner if p.requires_grad}
        named = named_in_groups(self.param_groups)
        require_replicas(named, self.process_group, "reduce_gradients", copies_part=True)
        place_gradients(trained, self)
        buckets = self._buckets(trained)
        reduce_to_owners(buckets, self.process_group)
        self._means = {p: p.grad for b in buckets if b.owner == self.rank for p in b.parameters()}

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None, **keywords: Any
    ) -> float | None:
        """Updates the own parameters, then spreads all of them from their owners. All ranks call it.

        Further keywords go to the own optimizer's step.
        """
        assert self._local is not None, "set by __init__"
        self._check_step()
        self._consolidated = None
        self._means.clear()
        copy_options(self.param_groups, self._local.param_groups)
        if closure is not None:  # there are optimizers whose step takes none
            keywords["closure"] = closure
        with events.span("update own parameters", "compute"):
            loss = self._local.step(**keywords)
        copy_options(self._local.param_groups, self.param_groups)
        # One that is frozen by now still changes, where a gradient is left: by momentum, by weight decay.
        self._changing |= {p for p in self.owner if p.requires_grad}
        spread_from_owners(self._buckets(self._changing), self.process_group)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Lets go of all gradients, or sets them to zero: every rank's own ones."""
        self._means.clear()
        super().zero_grad(set_to_none)

    def _buckets(self, chosen: set[torch.Tensor]) -> list[Bucket]:
        buckets: list[Bucket] = []
        for rank in range(self.world_size):
            mine = [p for p in self.owned(rank) if p in chosen]
            buckets += in_buckets(mine, self.owner.__getitem__, BUCKET_BYTES)
        return list(by_turns(buckets, self.world_size))

    # --- uneven inputs: torch.distributed.algorithms.Join ---------------------------------------------------

    def join_hook(self, **keywords: Any) -> JoinHook:
        """What this rank does for the others once it has no more data: it updates its own parameters and sends them.

        DistributedDataParallel, before it in the list, has left it the mean gradients. Hyperparameters are those that
        this rank had last: a schedule goes on only where there is data, so call its step outside Join.
        """
        return _ZeroJoinHook(self)

    @property
    def join_device(self) -> torch.device:
        """Where Join counts the ranks that still have data."""
        return self._built_with[0][1]

    @property
    def join_process_group(self) -> Any:
        """The ranks that join."""
        return self.process_group

    # --- state dicts ----------------------------------------------------------------------------------------

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Brings all states to rank `to` of the group, into host memory; all ranks call it. Then `state_dict` there.

        Over tensor or expert parallelism all ranks of those axes call it: those beside `to` get the whole states, too.
        """
        if not 0 <= to < self.world_size:
            raise ValueError(
                f"there is no rank {to} in a group of {self.world_size}: states can be brought to "
                f"0 to {self.world_size - 1}"
            )
        shard = super().state_dict()  # parameters numbered over all groups, states of the own ones
        shard["state"] = {number: on_cpu(state) for number, state in shard["state"].items()}
        shards: list[Any] | None = [None] * self.world_size if self.rank == to else None
        dist.gather_object(shard["state"], shards, group=self.process_group, group_dst=to)
        self._consolidated = None
        if shards is not None:
            states = {number: state for part in shards for number, state in part.items()}
            self._consolidated = shard | {
                "state": whole_states(states, parameters_of(self.param_groups))
            }

    def state_dict(self) -> dict[str, Any]:
        """What a plain `optimizer_class` over all parameters would give: loads into one, and on any world size.

        RuntimeError where the states are not: before `consolidate_state_dict`, after a further step, on other ranks.
        """
        if self._consolidated is None:
            raise RuntimeError(
                f"rank {self.rank} holds the states of its own parameters only: call "
                f"consolidate_state_dict(to={self.rank}) "
                "on all ranks first, after the last step, and state_dict() on that rank alone"
            )
        return self._consolidated

    def states_changed(self) -> None:
        """Others have put states in place (checkpoint.load): what was consolidated before is old."""
        self._consolidated = None

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes the whole optimizer's state dict, keeps the own part. From any world size, or from a plain optimizer.

        Raises ValueError, with nothing changed, where it is another model's.
        """
        parameters = parameters_of(self.param_groups)
        own = {
            number: own_piece(state, parameter)
            for number, (parameter, state) in states_of(state_dict, parameters).items()
            if state and self.owner[parameter] == self.rank
        }
        super().load_state_dict({**state_dict, "state": own})
        assert self._local is not None, "set by __init__"
        self._local.state = self.state
        copy_options(self.param_groups, self._local.param_groups)
        self._consolidated = None

    # --- bookkeeping ----------------------------------------------------------------------------------------

    def _check_same(self, groups: list[dict[str, Any]]) -> None:
        named = named_in_groups(groups)
        require_unsharded(named, type(self).__name__)
        check_same(
            named, self.process_group, "optimize different parameters", copies=type(self).__name__
        )

    def _owned_group(self, group: dict[str, Any]) -> dict[str, Any]:
        options = {k: v for k, v in group.items() if k not in ("params", "param_names")}
        return options | {"params": [p for p in group["params"] if self.owner[p] == self.rank]}

    def _check_step(self) -> None:
        if joining(self) and joins_first(self):
            raise ValueError(
                "a step comes after the forward and backward of a model that averages: pass Join([model, "
                "optimizer]), the DistributedDataParallel before its optimizer"
            )
        check_as_built(self._built_with, self.param_groups)


class _ZeroJoinHook(JoinHook):
    """Shadows the steps of the others by steps of its own."""

    def __init__(self, optimizer: ZeroRedundancyOptimizer) -> None:
        self.optimizer = optimizer

    def main_hook(self) -> None:
        self.optimizer.step()
