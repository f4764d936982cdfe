"""A layer on its way from one rank to another, with all that training knows of it.

What travels: a header (names, shapes, dtypes, and what is no tensor), then each tensor: parameters, gradients, buffers,
and the optimizer's states of the parameters. All that may fail comes before the first tensor: the sender packs, the
receiver reads the header and makes room. Then the tensors take the places of those that the receiver's structure had,
whatever dtype or shape those were of, and the sender has the layer on the meta device.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.collectives import p2p
from dtcourse.parameters.naming import with_extra_state
from dtcourse.torch_private import device_of_messages, own_buffers, own_parameters


class Form(NamedTuple):
    """What comes: of which parameter or buffer, what of it, and what its tensor is like.

    kind: "parameter", "gradient", "buffer", or the key of an optimizer's state after "state "
    """

    kind: str
    name: str
    shape: torch.Size
    dtype: torch.dtype
    on_host: bool


@dataclass(frozen=True)
class Packed:
    """What a layer is sent as: its header, pickled, and its tensors."""

    header: bytes
    tensors: list[torch.Tensor]


@dataclass(frozen=True)
class Room:
    """A header that came, and memory for its tensors."""

    header: dict[str, Any]
    tensors: list[torch.Tensor]


def pack(layer: nn.Module, optimizer: torch.optim.Optimizer) -> Packed:
    """All of a layer, which stays as it is. Raises what pickle does for a state that cannot be sent."""
    tensors: list[tuple[str, str, torch.Tensor]] = []
    numbers: dict[tuple[str, str], Any] = {}
    for name, parameter in layer.named_parameters():
        tensors.append(("parameter", name, parameter.detach()))
        if parameter.grad is not None:
            tensors.append(("gradient", name, parameter.grad))
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                tensors.append((f"state {key}", name, value))
            else:
                numbers[name, key] = value
    buffers = dict(_buffers(layer))
    tensors += [("buffer", name, one) for name, one in buffers.items() if one is not None]
    header = {
        "forms": [
            Form(kind, name, t.shape, t.dtype, t.device.type == "cpu") for kind, name, t in tensors
        ],
        "numbers": numbers,
        "trained": {name: p.requires_grad for name, p in layer.named_parameters()},
        "marks": {name: vars(p) for name, p in layer.named_parameters()},
        "without": [name for name, one in buffers.items() if one is None],
        "training": {name: one.training for name, one in layer.named_modules()},
        "extra": {name: one.get_extra_state() for name, one in with_extra_state(layer).items()},
    }
    return Packed(pickle.dumps(header), [tensor for _, _, tensor in tensors])


def send_header(packed: Packed, to: int, group: dist.ProcessGroup | None) -> None:
    """Tells a rank of the group what will come."""
    where = device_of_messages(group)
    header = torch.frombuffer(bytearray(packed.header), dtype=torch.uint8).to(where)
    p2p.send(torch.tensor([len(header)], device=where), to, group)
    p2p.send(header, to, group)


def receive_header(source: int, group: dist.ProcessGroup | None) -> bytes:
    """What another rank says will come."""
    where = device_of_messages(group)
    length = torch.empty(1, dtype=torch.int64, device=where)
    p2p.recv(length, source, group)
    header = torch.empty(int(length), dtype=torch.uint8, device=where)
    p2p.recv(header, source, group)
    return header.cpu().numpy().tobytes()


def make_room(header: bytes, device: torch.device) -> Room:
    """Memory for what will come. Raises what torch does where there is too little."""
    read = pickle.loads(header)
    return Room(
        read,
        [
            torch.empty(form.shape, dtype=form.dtype, device="cpu" if form.on_host else device)
            for form in read["forms"]
        ],
    )


def send_tensors(packed: Packed, to: int, group: dist.ProcessGroup | None) -> None:
    """Sends them to a rank of the group."""
    where = device_of_messages(group)
    for tensor in packed.tensors:
        p2p.send(tensor.contiguous().to(where), to, group)


def receive_tensors(room: Room, source: int, group: dist.ProcessGroup | None) -> None:
    """Fills the room with what another rank sends."""
    where = device_of_messages(group)
    for tensor in room.tensors:
        came = tensor if tensor.device == where else torch.empty_like(tensor, device=where)
        p2p.recv(came, source, group)
        if came is not tensor:
            tensor.copy_(came)


def leave(layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """The layer is elsewhere now: its structure stays alone."""
    for parameter in layer.parameters():
        optimizer.state.pop(parameter, None)
    leave_structure(layer)


def leave_structure(layer: nn.Module) -> None:
    """Lets go of its memory, and of its gradients, which would come back as memory that nobody has filled."""
    layer.zero_grad(set_to_none=True)
    layer.to("meta")


def unpack(layer: nn.Module, room: Room, optimizer: torch.optim.Optimizer) -> None:
    """The layer, a structure until now, is what has come."""
    header, modules = room.header, dict(layer.named_modules())
    parameters: dict[str, nn.Parameter] = {}
    for name in header["without"]:
        path, _, own = name.rpartition(".")
        own_buffers(modules[path])[own] = None
    for form, came in zip(header["forms"], room.tensors, strict=True):
        path, _, own = form.name.rpartition(".")
        if form.kind == "parameter":
            made = nn.Parameter(came, header["trained"][form.name])
            vars(made).update(header["marks"][form.name])
            parameters[form.name] = own_parameters(modules[path])[own] = made
        elif form.kind == "gradient":
            parameters[form.name].grad = came
        elif form.kind == "buffer":
            own_buffers(modules[path])[own] = came
        else:
            optimizer.state[parameters[form.name]][form.kind.removeprefix("state ")] = came
    for (name, key), value in header["numbers"].items():
        optimizer.state[parameters[name]][key] = value
    for name, training in header["training"].items():
        modules[name].training = training
    for name, one in with_extra_state(layer).items():
        one.set_extra_state(header["extra"][name])


def _buffers(layer: nn.Module) -> Iterator[tuple[str, torch.Tensor | None]]:
    """All of them by name, those that are None too."""
    for path, module in layer.named_modules():
        for own, buffer in own_buffers(module).items():
            yield f"{path}.{own}" if path else own, buffer
