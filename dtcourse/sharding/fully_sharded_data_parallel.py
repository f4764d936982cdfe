"""Fully sharded data parallelism with flat parameters: each rank keeps an equal run of a
unit's elements (PyTorch's "FSDP1").

    for i, block in enumerate(model.blocks):
        model.blocks[i] = FullyShardedDataParallel(block)      # inner modules first
    model = FullyShardedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())          # after: it updates this rank's parts
    loss(model(x), y).backward()

The older of the two layouts, and the simpler one: a unit's parameters are one flat tensor, and gathered parts need no
copy (flat_parameter.py). What a rank keeps of a matrix is no matrix, though, so norms and clipping need methods of
their own, and state dicts functions of their own. fully_shard.py has the other layout; units, hooks and schedule are
the same.
Source: Zhao et al., PyTorch FSDP (VLDB 2023, arXiv 2304.11277).

n parameters on p ranks with mixed-precision Adam: 16 n / p bytes a rank, each unit padded to a multiple of p; bytes
sent as fully_shard.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dtcourse.parameters import clipping
from dtcourse.sharding.flat_parameter import FlatParameter
from dtcourse.sharding.policies import MixedPrecisionPolicy, OffloadPolicy
from dtcourse.sharding.sharded_module import ShardedModule, shard_module, units_of
from dtcourse.sharding.state_dict import load_full_state_dict


class FullyShardedDataParallel(ShardedModule):
    """FullyShardedDataParallel(module) makes the parameters of `module` that no inner unit has into a unit.

    The arguments are fully_shard's, and so is what they mean; reshard_after_forward=True is PyTorch's FULL_SHARD, False
    its SHARD_GRAD_OP, and a mesh of two axes its HYBRID_SHARD.

    Other than PyTorch's it returns the module itself, changed in place, not another one around it: names stay the
    plain model's. The first rank's values become everyone's (PyTorch: sync_module_states).

    A model that tensor, sequence or expert parallelism has cut before is sharded over the data axis of their mesh.

    Raises ValueError for what shard_module refuses.
    """

    made_by, may_change = "FullyShardedDataParallel", False

    def __new__(
        cls,
        module: nn.Module,
        mesh: DeviceMesh | None = None,
        reshard_after_forward: bool | None = True,
        mp_policy: MixedPrecisionPolicy | None = None,
        offload_policy: OffloadPolicy | None = None,
    ) -> Any:
        """The module itself, sharded."""
        return shard_module(
            module, cls, FlatParameter, mesh, reshard_after_forward, mp_policy, offload_policy
        )

    def __init__(self, *args: Any, **keywords: Any) -> None:
        """Nothing: the module was there before."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside keep their gradients on the rank; the next one outside sends the sum."""
        before = {unit: unit.reduces_gradients for unit in units_of(self, True)}
        self.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            for unit, reduces in before.items():
                unit.reduces_gradients = reduces

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """As torch.nn.utils.clip_grad_norm_, of the whole model's gradients, of which each rank holds a part.

        torch's own function sees this rank's part only, and each rank would clip by another norm.
        """
        norm = clipping.clip_grad_norm(self, max_norm, norm_type, error_if_nonfinite)
        return norm.float()

    def state_dict(self, *args: Any, **keywords: Any) -> Any:
        """Refused: what is here are parts, without the shapes and names that would make sense of them elsewhere."""
        raise RuntimeError(
            "a sharded model's state is in parts: use sharding.full_state_dict(model) for whole tensors, or "
            "sharding.checkpoint.save(folder, model, optimizer) for parts on disk that load on any number of ranks"
        )

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Loads whole tensors, as sharding.load_full_state_dict does. Every rank must call it, with the same state."""
        if not strict or assign:
            raise ValueError(
                "a sharded model loads all of a state, in place: strict=True, assign=False"
            )
        load_full_state_dict(self, state_dict)  # type: ignore[arg-type]
