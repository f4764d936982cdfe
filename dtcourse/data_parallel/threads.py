"""nn.DataParallel by hand: one process, a thread for each replica, and one device through which everything goes.

    model = DataParallel(model, 4)              # on the CPU, or on the first four GPUs
    loss(model(x), y).backward()                # the whole batch goes in, the whole output comes out

In every step: copy all parameters to every device, cut the batch, run one replica in each thread, gather the outputs
on the first device, where the loss is. Backward goes the same ways in the other direction, and so adds the replicas'
gradients up in the one model that there is. Nobody had to change a script, and that is why it was loved.

Bytes over the first device's link in a step, for n devices and P bytes of parameters: (n - 1) P out, (n - 1) P of
gradients back, and (n - 1)/n of inputs and outputs; DDP sends 2 (n - 1)/n P over each rank's own link. The first device
also holds the optimizer's state, all outputs and the loss. The threads of one process take turns at Python (the GIL).
Source: Li et al., PyTorch Distributed (VLDB 2020, arXiv 2006.15704), section 2; nn.DataParallel's own documentation.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from dtcourse import device as devices_here
from dtcourse import events
from dtcourse.torch_private import own_buffers, own_modules, own_parameters

MOVED = ("parameters", "buffers", "inputs", "outputs", "output gradients", "gradients")


class DataParallel(nn.Module):
    """Wraps `module`, which lives on the first device; the others hold copies of it for one step at a time.

    devices: where the replicas run, the first being the module's own; or how many of this machine's to take (on a
             machine without GPUs each is the CPU once more). None: all GPUs
    moved:   bytes between the first device and the others since the last forward began, by what they were (MOVED)

    The batch is dimension 0 of every tensor among the arguments. Buffers that forward changes (running statistics)
    are kept from the first replica alone. Raises ValueError if the module is elsewhere than on the first device.
    """

    def __init__(
        self, module: nn.Module, devices: int | Sequence[torch.device | str] | None = None
    ) -> None:
        super().__init__()
        devices = devices_here.count() or 1 if devices is None else devices
        if isinstance(devices, int):
            devices = [devices_here.for_rank(number) for number in range(devices)]
        self.devices = [torch.device(one) for one in devices]
        if not self.devices:
            raise ValueError("DataParallel needs at least one device; got none")
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if tensor.device != self.devices[0]:
                raise ValueError(
                    f"{name} is on {tensor.device}, and the first device is {self.devices[0]}: move the module "
                    "there first"
                )
        self.module = module
        self.moved = dict.fromkeys(MOVED, 0)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """The module's output for the whole batch, on the first device."""
        self.moved.update(dict.fromkeys(MOVED, 0))
        with events.span("scatter", "communication"):
            parts = scatter((inputs, keywords), self.devices, self.moved)
        devices = self.devices[: len(parts)]  # a small batch leaves some devices idle
        with events.span("replicate", "communication"):
            replicas = replicate(self.module, devices, self.moved)
        outputs = parallel_apply(replicas, parts, devices)
        with events.span("gather", "communication"):
            return gather(outputs, devices[0], self.moved)


# --- the four steps -------------------------------------------------------------------------------------------


def scatter(value: Any, devices: Sequence[torch.device], moved: dict[str, int]) -> list[Any]:
    """A part for each device: tensors are cut along dimension 0, nests of them too, anything else is repeated."""
    if isinstance(value, torch.Tensor):
        chunks = value.chunk(len(devices)) if value.dim() else [value] * len(devices)
        return [_move(t, d, i, moved, "inputs") for i, (t, d) in enumerate(zip(chunks, devices))]  # noqa: B905
    if isinstance(value, dict):
        parts = [scatter(one, devices, moved) for one in value.values()]
        return [dict(zip(value, some, strict=True)) for some in _shortest(parts, devices)]
    if isinstance(value, list | tuple):
        parts = [scatter(one, devices, moved) for one in value]
        return [type(value)(some) for some in _shortest(parts, devices)]
    return [value] * len(devices)


def replicate(
    module: nn.Module, devices: Sequence[torch.device], moved: dict[str, int]
) -> list[nn.Module]:
    """The module itself for the first device, and a twin for each other one.

    A twin's parameters are no leaves: they are results of a copy, which autograd knows. So their gradients flow back
    through it into the one parameter, where those of all twins are added.
    """
    return [module] + [_twin(module, d, i, moved) for i, d in enumerate(devices) if i]


def parallel_apply(
    replicas: Sequence[nn.Module], parts: Sequence[Any], devices: Sequence[torch.device]
) -> list[Any]:
    """Every replica on its part, each in a thread of its own. An error names its replica and keeps its type."""
    outputs: list[Any] = [None] * len(replicas)
    errors: dict[int, Exception] = {}
    grad_enabled, kind = torch.is_grad_enabled(), devices[0].type  # a thread starts with neither
    autocast = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)

    def run(number: int) -> None:
        inputs, keywords = parts[number]
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(grad_enabled))
            stack.enter_context(torch.autocast(kind, enabled=autocast[0], dtype=autocast[1]))
            stack.enter_context(events.span("forward", "compute", lane=f"replica {number}"))
            try:
                devices_here.use(devices[number])
                outputs[number] = replicas[number](*inputs, **keywords)
            except Exception as error:
                error.add_note(
                    f"in replica {number} of {len(replicas)} (counted from 0), on {devices[number]}"
                )
                errors[number] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(replicas))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[min(errors)]
    return outputs


def gather(outputs: Sequence[Any], first: torch.device, moved: dict[str, int]) -> Any:
    """The replicas' outputs as one, on the first device: tensors along dimension 0, a vector of those without any."""
    one = outputs[0]
    if isinstance(one, torch.Tensor):
        here = [_move(t, first, i, moved, "outputs") for i, t in enumerate(outputs)]
        return torch.cat(here) if one.dim() else torch.stack(here)
    if isinstance(one, dict):
        return {key: gather([o[key] for o in outputs], first, moved) for key in one}
    if isinstance(one, list | tuple):
        return type(one)(gather(some, first, moved) for some in zip(*outputs, strict=True))
    raise ValueError(
        f"outputs of replicas are tensors, or lists, tuples and dicts of them; got {type(one).__name__}"
    )


# --- what they are made of ------------------------------------------------------------------------------------


def _move(
    tensor: torch.Tensor, device: torch.device, number: int, moved: dict[str, int], what: str
) -> torch.Tensor:
    """A copy of the tensor on `device`, through which gradients flow back; replica 0 is there already."""
    if number == 0:
        return tensor
    twin = tensor.to(device, copy=True)  # a copy on the CPU too: what would travel is counted
    moved[what] += tensor.nbytes
    back = {"parameters": "gradients", "outputs": "output gradients"}.get(what)
    if twin.requires_grad and back:

        def count(gradient: torch.Tensor) -> None:
            moved[back] += gradient.nbytes

        twin.register_hook(count)
    return twin


def _twin(module: nn.Module, device: torch.device, number: int, moved: dict[str, int]) -> nn.Module:
    modules: dict[nn.Module, nn.Module] = {}
    tensors: dict[torch.Tensor, torch.Tensor] = {}  # what is tied here is tied there

    def twin_of(part: nn.Module) -> nn.Module:
        if part in modules:
            return modules[part]
        twin = modules[part] = object.__new__(type(part))
        # Dicts and lists of its own: nothing that is set on the twin changes the original.
        for key, value in vars(part).items():
            twin.__dict__[key] = copy.copy(value) if isinstance(value, dict | list) else value
        own_parameters(twin).clear()
        for name, child in own_modules(part).items():
            own_modules(twin)[name] = None if child is None else twin_of(child)
        for what, owned in (("parameters", own_parameters(part)), ("buffers", own_buffers(part))):
            for name, tensor in owned.items():
                if tensor is not None and tensor not in tensors:
                    tensors[tensor] = _move(tensor, device, number, moved, what)
                setattr(twin, name, None if tensor is None else tensors[tensor])
        return twin

    return twin_of(module)


def _shortest(parts: list[list[Any]], devices: Sequence[torch.device]) -> list[tuple[Any, ...]]:
    """Arguments by device, for as many devices as every argument has parts for."""
    if not parts:
        return [()] * len(devices)
    return list(zip(*parts, strict=False))
