"""What a rank holds of a model and its optimizer: of each tensor a name, which piece of it, and a sum of its bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtcourse.parameters.checksum import checksum
from dtcourse.parameters.cuts import Elsewhere, Run, Sliced
from dtcourse.parameters.naming import buffers, entries, modules_of
from dtcourse.parameters.placement import Placement, local, placement_of
from dtcourse.parameters.seeds import seed_of


class Held(NamedTuple):
    """What one rank holds: a tensor's name, which piece of it, and its form, as all its replicas have them."""

    name: str
    piece: tuple[Any, ...]
    form: str


def sums(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, statistics: bool
) -> Iterator[tuple[Held, Tensor]]:
    """All that this rank holds, in the order of the model: parameters, buffers, then the optimizer's."""
    held = [(e.names[0], e.parameter, piece_of(e.placed)) for e in entries(model)]
    for name, parameter, piece in held:
        if piece is not None:
            yield _sum(name, piece, parameter)
    own = set() if statistics else _own_statistics(model)
    for name, buffer in buffers(model).items():
        piece = piece_of(placement_of(buffer))
        if piece is not None and name not in own:
            yield _sum(name, piece, buffer)
    for name, parameter, piece in held if optimizer is not None else ():
        if piece is not None:
            yield from _of_optimizer(optimizer, name, parameter, piece)


def _of_optimizer(
    optimizer: Any, name: str, parameter: nn.Parameter, piece: tuple[str, ...]
) -> Iterator[tuple[Held, Tensor]]:
    for group in optimizer.param_groups:
        if any(parameter is one for one in group["params"]):
            options = {k: _plain(v) for k, v in group.items() if k not in ("params", "param_names")}
            yield _hash(f"the optimizer's options of {name}", piece, sorted(options.items()))
            break
    else:
        return
    owner = optimizer.owners(parameter) if hasattr(optimizer, "owners") else None
    if owner is not None and not owner.counts:
        return  # its slots are on one rank alone
    slots = optimizer.state.get(parameter, {})
    if owner is None:
        yield _hash(f"the optimizer's slots of {name}", piece, sorted(map(str, slots)))
    for slot, value in slots.items():
        if isinstance(value, Tensor):
            # A count of steps is the same for all pieces.
            of_piece = piece if local(value).shape == local(parameter).shape else ()
            yield _sum(f"{slot} of {name}", of_piece, value)


def piece_of(placed: Placement) -> tuple[str, ...] | None:
    """Which piece of the whole this rank has, in words; () of what is whole, None where nobody knows."""
    said: list[str] = []
    for cut in placed.cuts:
        if isinstance(cut, Elsewhere):
            return None
        if isinstance(cut, Sliced) and cut.differs:
            said.append(f"part {cut.part} of {cut.parts} along dim {cut.dim}")
        elif isinstance(cut, Run) and dist.get_world_size(cut.group) > 1:
            first, last = cut.mine
            said.append(f"elements {first} to {last}")
        elif not isinstance(cut, Sliced | Run) and cut.differs:
            said.append("the owner's")
    return tuple(said)


def _own_statistics(model: nn.Module) -> set[str]:
    names = ("running_mean", "running_var", "num_batches_tracked")
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in modules_of(model)
        if getattr(module, "track_running_stats", False)
        and "SyncBatchNorm" not in type(module).__name__
        for name in names
    }


def _sum(name: str, piece: tuple[str, ...], tensor: Tensor) -> tuple[Held, Tensor]:
    mine = local(tensor)
    return Held(name, piece, f"{tuple(mine.shape)} {str(mine.dtype)[6:]}"), checksum(mine)


def _hash(name: str, piece: tuple[str, ...], value: Any) -> tuple[Held, Tensor]:
    return Held(name, piece, ""), torch.tensor(seed_of(0, (value,)) >> 1)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else repr(value)
