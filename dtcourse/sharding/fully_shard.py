"""Fully sharded data parallelism (ZeRO-3): each rank keeps some rows of each parameter, gradient and optimizer state.

    for block in model.blocks:
        fully_shard(block)                       # inner modules first: each is gathered and freed as one unit
    fully_shard(model)                           # then the root, which takes what is left
    optimizer = torch.optim.AdamW(model.parameters())   # after: it updates DTensors
    loss(model(x), y).backward()                 # and the rest is as always

Hooks gather a unit's parameters before its forward and again before its backward, free them after, and reduce-scatter
its gradients as soon as they are ready. The model stays what it is: names, class and code. hooks.py says where in a
step the hooks are, schedule.py what happens when, unit.py what a unit does, dtensor_parameters.py how parameters are
cut.
Sources: Rajbhandari et al., ZeRO (arXiv 1910.02054), P_os+g+p; PyTorch's torch.distributed.fsdp.fully_shard.

n parameters on p ranks with mixed-precision Adam: 16 n / p bytes a rank (parameter, gradient, two moments, 4 each),
rows padded to a multiple of p, and for a moment two units whole and the gradients of one, twice: as they come and as
they leave. A step sends 3 (p - 1) / p n elements a rank, 1.5 times as many as DDP: n gathered in forward, n again in
backward, n reduced. With reshard_after_forward=False 2 (p - 1) / p n, as DDP, and n whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dtcourse.sharding.dtensor_parameters import DTensorParameters
from dtcourse.sharding.policies import MixedPrecisionPolicy, OffloadPolicy
from dtcourse.sharding.sharded_module import Sharded, ShardedModule, shard_module, units_of
from dtcourse.sharding.unit import units_in
from dtcourse.sharding.whole_model import give_memory_for


def fully_shard(
    module: Sharded,
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
) -> Sharded:
    """Makes the parameters of `module` that no inner unit has into a unit, in place, and returns the module.

    mesh:     one axis: parameters are cut over its ranks. Two axes (replicate, shard): cut over the second, held alike
              over the first (hybrid sharding). Default: all ranks
    reshard_after_forward: True frees the parameters after forward and gathers them again for backward; False keeps them
              in between; None is True but for the outermost unit
    mp_policy: dtypes of computation and reduction; the parameters' own are those of storage
    offload_policy: CPUOffloadPolicy() keeps shards, gradients and optimizer states in host memory

    The parameters become DTensors, Shard(0), so torch.nn.utils.clip_grad_norm_, torch.amp.GradScaler, plain optimizers
    and state dicts see the whole ones. In a module's own forward and backward they are plain tensors.

    A model that tensor, sequence or expert parallelism has cut before is sharded over the data axis of their mesh,
    fully_shard(model, mesh=mesh["data"]), whose ranks hold the same slices. Its DTensors are of both axes then.

    All ranks must call the same units in the same order, as with PyTorch's: they gather each together. Where a branch
    by a rank's own data leads to different units, each would compute with the other's parameters: call both branches on
    all ranks, or make one unit of what branches. Ranks that differ when they first call a unit are told so, by a
    ValueError; later nobody asks (same_units.py).

    Other than PyTorch's: the first rank's values become everyone's, of parameters and buffers alike, and a model on the
    meta device is given memory here, unit by unit, by its modules' reset_parameters. A unit with a module that has none
    stays there, for model.to_empty(device=...) and values of the caller's own; so does every unit where this is called
    within `with torch.device("meta")`. Parameters may be converted, frozen and unfrozen later, alike on all ranks:
    changed.py.

    Raises ValueError for what shard_module refuses, for a scalar, which has no rows, and for slices that several ranks
    hold (key-value heads), which a DTensor cannot say.
    """
    return shard_module(
        module,
        FSDPModule,
        DTensorParameters,
        mesh,
        reshard_after_forward,
        mp_policy,
        offload_policy,
    )


class FSDPModule(ShardedModule):
    """What a module can do after fully_shard, besides being called. Names are PyTorch's."""

    def before_conversion(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool) -> None:
        """.to(), .to_empty() and the like are of the shards; the next forward lays them out anew (changed.py)."""
        for unit in units_of(self, recurse):
            unit.reshard()

    def after_conversion(self, recurse: bool) -> None:
        """The shards are the same ones, of another dtype or elsewhere: what they are pieces of is noted again."""
        for unit in units_of(self, recurse):
            for group in unit.param_groups:
                group.mark()

    def state_dict(self, *args: Any, **keywords: Any) -> Any:
        """DTensors by the plain model's names; `full_tensor()` of one is the whole."""
        self._reshard_all()
        return super().state_dict(*args, **keywords)  # type: ignore[misc]

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Loads DTensors that are cut alike; sharding.load_full_state_dict takes whole tensors.

        assign: what is on the meta device gets memory where the state's tensor has its own. Parameters stay the objects
                that they are, since optimizers hold them, and get the state's values, as without assign
        Raises ValueError where assign would change a dtype.
        """
        self._reshard_all()
        if assign:
            give_memory_for(self, state_dict)  # type: ignore[arg-type]
        return nn.Module.load_state_dict(self, state_dict, strict)  # type: ignore[arg-type]

    def _reshard_all(self) -> None:
        """What was gathered by unshard() is freed: a state is of the shards."""
        for unit in units_in(self):  # type: ignore[arg-type]
            if unit.unsharded_by_user:
                unit.reshard()
