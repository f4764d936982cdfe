"""Fully sharded data parallelism (ZeRO-3): parameters, gradients and optimizer states cut into p parts, one a rank.

    for block in model.blocks:
        fully_shard(block)                       # inner modules first: each is gathered and freed as one unit
    fully_shard(model)                           # then the root, which takes what is left
    optimizer = torch.optim.AdamW(model.parameters())   # after: it updates this rank's parts
    loss(model(x), y).backward()                 # and the rest is as always

Hooks gather a unit's parameters before its forward and again before its backward, free them after, and reduce-scatter its
gradients as soon as they are ready. The model stays what it is: names, class and code. hooks.py says where in a
step the hooks are, schedule.py what happens when, unit.py what a unit does, flat_parameter.py how parameters lie in it.
Sources: Rajbhandari et al., ZeRO (arXiv 1910.02054), P_os+g+p; Zhao et al., PyTorch FSDP (arXiv 2304.11277).

n parameters on p ranks with mixed-precision Adam: 16 n / p bytes a rank (parameter, gradient, two moments, 4 each),
and for a moment two units whole and the gradients of one, twice: as they come and as they leave. A step sends 3 (p - 1) / p n elements a rank, 1.5 times as many as DDP: n
gathered in forward, n again in backward, n reduced. With reshard_after_forward=False 2 (p - 1) / p n, as DDP, and n whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dtcourse import device
from dtcourse.parameters.grad_norm import Spread, scale_to, total_norm
from dtcourse.parameters.replicas import check_same_on_all_ranks
from dtcourse.sharding.hooks import Hooks
from dtcourse.sharding.policies import MixedPrecisionPolicy, OffloadPolicy, Ranks, ranks_of
from dtcourse.sharding.sharded_parameter import ShardedParameter
from dtcourse.sharding.stale import retire
from dtcourse.sharding.state_dict import load_full_state_dict
from dtcourse.sharding.unit import Named, Unit, units_in
from dtcourse.sharding.whole_model import materialise, share_buffers
from dtcourse.torch_private import AsksBeforeConversion, own_parameters


def fully_shard(
    module: nn.Module,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | None = True,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
) -> nn.Module:
    """Makes the parameters of `module` that no inner unit has into a unit, in place, and returns the module.

    mesh:     one axis: parameters are cut over its ranks. Two axes (replicate, shard): cut over the second, held alike over
              the first (hybrid sharding). Default: all ranks
    reshard_after_forward: True frees the parameters after forward and gathers them again for backward; False keeps them
              in between; None is True but for the outermost unit
    mp_policy: dtypes of computation and reduction; the parameters' own are those of storage
    offload_policy: CPUOffloadPolicy() keeps shards, gradients and optimizer states in host memory

    The first rank's values become everyone's, of parameters and buffers alike. A model on the meta device is given
    memory here, unit by unit, by its modules' reset_parameters. The module gets the methods of FSDPModule.

    Raises ValueError for a module that is sharded already, is a container without forward (ModuleList) or holds a parameter of another
    unit, for models that differ between ranks, and for a mesh of more than two axes.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"fully_shard takes a module; got {type(module).__name__}")
    if isinstance(module, FSDPModule):
        raise ValueError(f"{type(module).__name__} is sharded already: call fully_shard on it once")
    if isinstance(module, nn.ModuleList | nn.ModuleDict | nn.ParameterList | nn.ParameterDict):
        raise ValueError(
            f"{type(module).__name__} has no forward: parameters are gathered when their module is called, and this one "
            "never is. Apply fully_shard to the modules in it, or to the module whose forward uses what is in it."
        )
    if reshard_after_forward not in (True, False, None):
        raise ValueError(
            f"reshard_after_forward is True, False or None; got {reshard_after_forward!r}"
        )
    ranks = ranks_of(mesh)
    mine = _modules_of_unit(module)
    named = _parameters_of(mine)
    for group in filter(None, (ranks.shard, ranks.replicate)):
        held = [(name, parameter) for name, parameter, _ in named]
        check_same_on_all_ranks(
            held, group, "shard different modules", "call fully_shard in the same order"
        )
    originals = materialise(named, mine, device.current(), first=_is_first(ranks))
    share_buffers(mine.values(), ranks, device.current())
    unit = Unit(
        module,
        originals,
        ranks,
        reshard_after_forward,
        mp_policy or MixedPrecisionPolicy(),
        offload_policy or OffloadPolicy(),
    )
    for name, original, _ in named:
        retire(original, name)
    _become_fsdp(module, unit)
    Hooks(module, unit, tuple(mine.values()))
    return module


class FSDPModule(AsksBeforeConversion):
    """What a sharded module can do besides being called. Names are PyTorch's."""

    _fsdp: Unit

    def __new__(cls, *args: Any, **keywords: Any) -> Any:
        """A slice of a sharded nn.Sequential, say, is a plain one."""
        plain = next(c for c in cls.__mro__ if not issubclass(c, AsksBeforeConversion))
        made = plain.__new__(plain)
        made.__init__(*args, **keywords)  # type: ignore[misc]
        return made

    def unshard(self) -> None:
        """Gathers this module's own parameters (not those of inner units), until reshard() or its next forward."""
        self._fsdp.finish_gather()
        self._fsdp.kept_by_user = True

    def reshard(self) -> None:
        """Frees them again."""
        self._fsdp.free()

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:
        """False: backwards keep whole gradients on the rank, n elements of them; the next True one sends their sum."""
        for unit in _units(self, recurse):
            unit.sync = requires_gradient_sync

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Changes what was said to fully_shard."""
        for unit in _units(self, recurse):
            unit.reshard_after_forward = reshard_after_forward

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside keep their gradients on the rank; the next one outside sends the sum."""
        before = {unit: unit.sync for unit in _units(self, True)}
        self.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            for unit, sync in before.items():
                unit.sync = sync

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """As torch.nn.utils.clip_grad_norm_, of the whole model's gradients, of which each rank holds a part.

        torch's own function sees this rank's part only, and each rank would clip by another norm.
        """
        spreads = [
            Spread(
                [p.grad for flat in unit.flats for p in flat.sharded if p.grad is not None],
                (unit.ranks.shard,),
                unit.device,
            )
            for unit in _units(self, True)
        ]
        norm = total_norm(spreads, norm_type)
        scale_to([g for s in spreads for g in s.gradients], norm, max_norm, error_if_nonfinite)
        return norm.float()

    def before_conversion(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool) -> None:
        """What model.to(...) and .half() ask first: fine where it changes nothing."""
        for unit in _units(self, recurse):
            for flat in unit.flats:
                probe = flat.shard[:0]
                after = fn(probe)
                if (after.dtype, after.device) != (probe.dtype, probe.device):
                    raise ValueError(
                        f"the model was to become {after.dtype} on {after.device} after fully_shard; its shards are "
                        f"{probe.dtype} on {probe.device}. Convert and move it first, shard it then."
                    )

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

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError(
            "a sharded model is not pickled: it holds parts and process groups. Save its state, by sharding.checkpoint.save "
            "or full_state_dict, and build and shard the model again to load it"
        )

    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError(
            "a sharded model is not copied: its hooks belong to one model. Build another and load this one's state"
        )


# --- making a unit ---------------------------------------------------------------------------------------------


def _modules_of_unit(module: nn.Module) -> dict[str, nn.Module]:
    """`module` and what is inside, but for the units inside and what is in them."""
    found: dict[str, nn.Module] = {}

    def walk(prefix: str, at: nn.Module) -> None:
        if isinstance(at, FSDPModule) or at in found.values():
            return
        found[prefix] = at
        for name, child in at.named_children():
            walk(f"{prefix}.{name}" if prefix else name, child)

    walk("", module)
    return found


def _parameters_of(modules: dict[str, nn.Module]) -> list[Named]:
    """Each parameter once, under its first name, with all modules and attributes that hold it."""
    holders: dict[nn.Parameter, list[tuple[nn.Module, str]]] = {}
    names: dict[nn.Parameter, str] = {}
    for prefix, module in modules.items():
        for attribute, parameter in own_parameters(module).items():
            if parameter is None:
                continue
            name = f"{prefix}.{attribute}" if prefix else attribute
            owner = getattr(parameter, "_sharded_as", None)
            if isinstance(parameter, ShardedParameter):
                owner = parameter.place.name
            if owner is not None:
                raise ValueError(
                    f"{name} is the same parameter as {owner} of another unit, which is sharded "
                    "already. Tied parameters belong to one unit: apply fully_shard to the module that holds both."
                )
            names.setdefault(parameter, name)
            holders.setdefault(parameter, []).append((module, attribute))
    return [(names[p], p, tuple(places)) for p, places in holders.items()]


def _is_first(ranks: Ranks) -> bool:
    """Whether this rank's values are the ones that all take."""
    return dist.get_rank(ranks.shard) == 0


def _become_fsdp(module: nn.Module, unit: Unit) -> None:
    """The module's class becomes a subclass of what it was, with FSDPModule's methods."""
    module._fsdp = unit  # type: ignore[assignment]
    plain = type(module)
    if plain not in _classes:
        _classes[plain] = type(f"FSDP{plain.__name__}", (FSDPModule, plain), {})
    module.__class__ = _classes[plain]


_classes: dict[type, type] = {}


def _units(module: Any, recurse: bool) -> list[Unit]:
    if not recurse:
        return [module._fsdp]
    return units_in(module)
