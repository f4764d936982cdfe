"""What a module becomes when it is sharded, whichever way its parameters are cut: a unit, with hooks and methods.

`shard_module` makes the unit of the parameters that no inner module has; `ShardedModule` is what the module can do
then. fully_shard.py and fully_sharded_data_parallel.py each say how parameters are cut, and what is theirs alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from dtcourse import device
from dtcourse.parameters.same_model import check_same
from dtcourse.parameters.slices import require_unwrapped
from dtcourse.sharding.gathered_parameters import GatheredParameters, Named
from dtcourse.sharding.hooks import Hooks
from dtcourse.sharding.policies import (
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardGroups,
    shard_groups_of,
)
from dtcourse.sharding.refusals import NotCopied, ShardedTwice, refuse_container
from dtcourse.sharding.replaced import mark_replaced
from dtcourse.sharding.sharded_parameter import ShardedParameter
from dtcourse.sharding.unit import Unit, units_in
from dtcourse.sharding.whole_model import materialise, must_wait, share_buffers
from dtcourse.torch_private import AsksBeforeConversion, own_parameters

Sharded = TypeVar("Sharded", bound=nn.Module)


def shard_module(
    module: Sharded,
    methods: type[ShardedModule],
    layout: type[GatheredParameters],
    mesh: DeviceMesh | None,
    reshard_after_forward: bool | None,
    mp_policy: MixedPrecisionPolicy | None,
    offload_policy: OffloadPolicy | None,
    waits: bool = False,
) -> Sharded:
    """Makes the parameters of `module` that no inner unit has into a unit, in place, and returns the module.

    methods: a class that the module's becomes a subclass of;  layout: how parameters are
             cut;  the others: fully_shard's
    waits:   what is on the meta device stays there

    Raises ValueError for a module that is sharded already, is a container without forward (ModuleList) or holds a
    parameter of another unit, for models that differ between ranks, slices that do, a mesh of more than two axes, and
    gradients that a wrapper averages.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"only a module can be sharded; got {type(module).__name__}")
    if isinstance(module, ShardedModule):
        raise ShardedTwice(
            f"{type(module).__name__} is sharded already: shard a module once. "
            "(Each distinct composable distributed API can only be applied to a module once.)"
        )
    refuse_container(module, methods.made_by)
    if (
        torch.get_default_device().type == "meta"
    ):  # within `with torch.device("meta")`: it stays there
        given = layout, mesh, reshard_after_forward, mp_policy, offload_policy
        with torch.device(device.current()):
            return shard_module(module, methods, *given, waits=True)
    if reshard_after_forward not in (True, False, None):
        raise ValueError(
            f"reshard_after_forward is True, False or None; got {reshard_after_forward!r}"
        )
    shard_groups = shard_groups_of(mesh)
    mine = _modules_of_unit(module)
    named = _parameters_of(mine)
    require_unwrapped([(name, parameter) for name, parameter, _ in named], methods.made_by)
    for group in filter(None, (shard_groups.shard, shard_groups.replicate)):
        check_same(
            [(name, parameter) for name, parameter, _ in named],
            group,
            "shard different modules",
            "shard them in the same order",
            copies=methods.made_by,
        )
    here, first = device.current(), _is_first(shard_groups)
    on_meta = methods.may_change and must_wait(mine, waits)
    originals = named if on_meta else materialise(named, mine, here, first)
    share_buffers(mine.values(), shard_groups, here)
    unit = Unit(
        module,
        originals,
        layout,
        shard_groups,
        reshard_after_forward,
        mp_policy or MixedPrecisionPolicy(),
        offload_policy or OffloadPolicy(),
        on_meta,
    )
    for name, original, _ in named:
        mark_replaced(original, name)
    _become(module, methods, unit)
    Hooks(module, unit, tuple(mine.values()))
    return module


class ShardedModule(AsksBeforeConversion):
    """What a sharded module can do besides being called. Names are PyTorch's."""

    made_by = "fully_shard"  # what a user has called
    may_change = True  # whether parameters may be converted, given memory and frozen later
    _fsdp: Unit

    def unshard(self) -> None:
        """Gathers this module's own parameters (not those of inner units), until reshard() or its next forward."""
        self._fsdp.wait_for_unshard()
        self._fsdp.unsharded_by_user = True

    def reshard(self) -> None:
        """Frees them again."""
        self._fsdp.reshard()

    def set_requires_gradient_sync(
        self, requires_gradient_sync: bool, *, recurse: bool = True
    ) -> None:
        """False: backwards keep whole gradients on the rank, n elements of them; the next True one sends their sum."""
        for unit in units_of(self, recurse):
            unit.reduces_gradients = requires_gradient_sync

    def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
        """Changes what was said to fully_shard."""
        for unit in units_of(self, recurse):
            unit.reshard_after_forward = reshard_after_forward

    def set_reshard_after_backward(
        self, reshard_after_backward: bool, *, recurse: bool = True
    ) -> None:
        """False: from the next backward on parameters stay whole, in forwards too, until a backward with True has run.

        For micro-batches whose gradients are kept whole as well; what an optimizer changes is gathered anew.
        """
        for unit in units_of(self, recurse):
            unit.reshard_after_backward = reshard_after_backward

    def before_conversion(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool) -> None:
        """What model.to(...) and .half() ask first: fine where it changes nothing."""
        for unit in units_of(self, recurse):
            for group in unit.param_groups:
                probe = group.shard[:0]
                after = fn(probe)
                if (after.dtype, after.device) != (probe.dtype, probe.device):
                    raise ValueError(
                        f"the model was to become {after.dtype} on {after.device} after it was sharded; its shards are "
                        f"{probe.dtype} on {probe.device}. Convert and move it first, shard it then."
                    )

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError(
            "a sharded model is not pickled: it holds parts and process groups. Save its state, by "
            "sharding.checkpoint.save or full_state_dict, and build and shard the model again to load it"
        )

    def __deepcopy__(self, memo: Any) -> Any:
        raise NotCopied(
            "a sharded model is not copied (FSDP does not support deepcopy): its hooks belong to one model. Build "
            "another and load this one's state"
        )


# --- making a unit ---------------------------------------------------------------------------------------------


def _modules_of_unit(module: nn.Module) -> dict[str, nn.Module]:
    """`module` and what is inside, but for the units inside and what is in them."""
    found: dict[str, nn.Module] = {}

    def walk(prefix: str, at: nn.Module) -> None:
        if isinstance(at, ShardedModule) or at in found.values():
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
            owner = getattr(parameter, "_replaced_by", None)
            if isinstance(parameter, ShardedParameter):
                owner = parameter.place.name
            elif isinstance(parameter, DTensor):
                owner = getattr(parameter, "sharded_name", None)
                if owner is None:
                    raise ValueError(
                        f"{name} is a DTensor, of tensor parallelism say: only plain parameters are cut here"
                    )
            if owner is not None:
                raise ValueError(
                    f"{name} is the same parameter as {owner} of another unit, which is sharded "
                    "already. Tied parameters belong to one unit: shard the module that holds both."
                )
            names.setdefault(parameter, name)
            holders.setdefault(parameter, []).append((module, attribute))
    return [(names[p], p, tuple(places)) for p, places in holders.items()]


def _is_first(shard_groups: ShardGroups) -> bool:
    """Whether this rank's values are the ones that all take."""
    return dist.get_rank(shard_groups.shard) == 0


def _become(module: nn.Module, methods: type[ShardedModule], unit: Unit) -> None:
    """The module's class becomes a subclass of what it was, with the methods of a sharded one."""
    module._fsdp = unit  # type: ignore[assignment]
    plain = type(module)
    if (methods, plain) not in _classes:
        _classes[methods, plain] = type(
            f"FSDP{plain.__name__}", (methods, plain), {"__new__": _plain}
        )
    module.__class__ = _classes[methods, plain]


def _plain(cls: type[nn.Module], *args: Any, **keywords: Any) -> nn.Module:
    """A slice of a sharded nn.Sequential, say, is a plain one."""
    kinds = (c for c in cls.__mro__ if issubclass(c, nn.Module))
    return next(c for c in kinds if not issubclass(c, AsksBeforeConversion))(*args, **keywords)


_classes: dict[tuple[type, type], type] = {}


def units_of(module: Any, recurse: bool) -> list[Unit]:
    """The unit of a sharded module, and, where asked, those of the modules inside."""
    return units_in(module) if recurse else [module._fsdp]
