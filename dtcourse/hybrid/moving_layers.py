"""A layer on its way from one rank to another, with all that training knows of it.

What travels: a header (names, shapes, dtypes, and what is no tensor), then each tensor: parameters, gradients, buffers,
and the optimizer's states of the parameters. Afterwards the sender has the layer on the meta device.
"""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.collectives import p2p
from dtcourse.parameters.naming import with_extra_state
from dtcourse.torch_private import device_of_messages


class Form(NamedTuple):
    """What comes: of which parameter or buffer, what of it, and what its tensor is like.

    kind: "parameter", "gradient", "buffer", or the key of an optimizer's state after "state "
    """

    kind: str
    name: str
    shape: torch.Size
    dtype: torch.dtype
    on_host: bool


def send_layer(
    layer: nn.Module, optimizer: torch.optim.Optimizer, to: int, group: dist.ProcessGroup | None
) -> None:
    """Sends it to a rank of the group, and keeps its structure alone."""
    tensors: list[tuple[str, str, torch.Tensor]] = []
    numbers: dict[tuple[str, str], Any] = {}
    for name, parameter in layer.named_parameters():
        tensors.append(("parameter", name, parameter.detach()))
        if parameter.grad is not None:
            tensors.append(("gradient", name, parameter.grad))
        for key, value in optimizer.state.pop(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                tensors.append((f"state {key}", name, value))
            else:
                numbers[name, key] = value
    tensors += [("buffer", name, buffer) for name, buffer in layer.named_buffers()]
    header = {
        "forms": [
            Form(kind, name, t.shape, t.dtype, t.device.type == "cpu") for kind, name, t in tensors
        ],
        "numbers": numbers,
        "trained": {name: p.requires_grad for name, p in layer.named_parameters()},
        "training": {name: one.training for name, one in layer.named_modules()},
        "extra": {name: one.get_extra_state() for name, one in with_extra_state(layer).items()},
    }
    where = device_of_messages(group)
    packed = torch.frombuffer(bytearray(pickle.dumps(header)), dtype=torch.uint8).to(where)
    p2p.send(torch.tensor([len(packed)], device=where), to, group)
    p2p.send(packed, to, group)
    for _, _, tensor in tensors:
        p2p.send(tensor.contiguous().to(where), to, group)
    leave_structure(layer)


def leave_structure(layer: nn.Module) -> None:
    """Lets go of its memory, and of its gradients, which would come back as memory that nobody has filled."""
    layer.zero_grad(set_to_none=True)
    layer.to("meta")


def receive_layer(
    layer: nn.Module,
    optimizer: torch.optim.Optimizer,
    source: int,
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> None:
    """Gives the layer, which is on the meta device, memory on `device`, and fills it with what the other rank sends."""
    where = device_of_messages(group)
    length = torch.empty(1, dtype=torch.int64, device=where)
    p2p.recv(length, source, group)
    packed = torch.empty(int(length), dtype=torch.uint8, device=where)
    p2p.recv(packed, source, group)
    header = pickle.loads(packed.cpu().numpy().tobytes())
    layer.to_empty(device=device)
    parameters, buffers = dict(layer.named_parameters()), dict(layer.named_buffers())
    for form in header["forms"]:
        came = torch.empty(form.shape, dtype=form.dtype, device=where)
        p2p.recv(came, source, group)
        with torch.no_grad():
            _put(form, came.to("cpu" if form.on_host else device), parameters, buffers, optimizer)
    for (name, key), value in header["numbers"].items():
        optimizer.state[parameters[name]][key] = value
    for name, trained in header["trained"].items():
        parameters[name].requires_grad_(trained)
    modules = dict(layer.named_modules())
    for name, training in header["training"].items():
        modules[name].training = training
    for name, one in with_extra_state(layer).items():
        one.set_extra_state(header["extra"][name])


def _put(
    form: Form,
    came: torch.Tensor,
    parameters: dict[str, nn.Parameter],
    buffers: dict[str, torch.Tensor],
    optimizer: torch.optim.Optimizer,
) -> None:
    if form.kind == "parameter":
        parameters[form.name].copy_(came)
    elif form.kind == "gradient":
        parameters[form.name].grad = came
    elif form.kind == "buffer":
        buffers[form.name].copy_(came)
    else:
        optimizer.state[parameters[form.name]][form.kind.removeprefix("state ")] = came
