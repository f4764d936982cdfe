"""Parameter offload: weights live in host memory and visit the device one unit at a time.

    offloaded = OffloadedParameters(model, units=model.blocks)
    optimizer = torch.optim.AdamW(offloaded.parameters())      # steps on the host, where the weights live
    loss(model(x), y).backward()
    optimizer.step()

Before a unit runs, forward or backward, its weights are copied in, while the unit before it still computes; after it
has run they are let go. The tensors stay, only their storage is emptied and filled again, so autograd's graph holds
on. A gradient leaves for the host as soon as backward has it. Source: Ren et al., ZeRO-Offload (arXiv 2101.06840),
Rajbhandari et al., ZeRO-Infinity (arXiv 2104.07857); the emptied storage is how PyTorch's FSDP does it.

Device memory: at most two units' weights and gradients, in place of all; what is in no unit stays. Bytes in a step:
weights in twice, gradients out once. Host memory: weights, gradients and optimizer states; on a CPU the weights there
lie in memory-mapped temporary files, so that the system can write them to disk.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import register_multi_grad_hook

from dtcourse import device, nested
from dtcourse.memory.offload import bytes_of, recorder
from dtcourse.torch_private import after_backward, version_of


class OffloadedParameters:
    """Takes the parameters of `units` off the device. For training and inference; `model` is called as before.

    units:  modules that run one after the other, none inside another; None: the model's children
    folder: where a CPU's memory-mapped files go; None: the system's folder for temporary files

    While a unit does not run, its parameters in the model are empty; the model's state dict has the host's values.
    ValueError for units without parameters, or that share some. RuntimeError in backward if the weights have been
    changed since forward.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Iterable[nn.Module] | None = None,
        folder: str | Path | None = None,
    ) -> None:
        modules = list(model.children() if units is None else units)
        everything = [p for module in modules for p in module.parameters()]
        if not everything:
            raise ValueError(
                "none of the units has a parameter: there is nothing to take off the device"
            )
        if len(set(everything)) < len(everything):
            raise ValueError(
                "two units share a parameter (it is tied, or a unit is inside another): put both into one unit, or "
                "leave the module that shares it out"
            )
        _check_space(everything, folder)
        self._model, self._names = model, dict(model.named_parameters(remove_duplicate=False))
        self._weights = {p: _Weight(p, folder) for p in everything}
        self._units = [
            _Unit(i, m, [self._weights[p] for p in m.parameters()]) for i, m in enumerate(modules)
        ]
        self._stream = device.SideStream(everything[0].device)
        # gradients on their way to the host
        self._arriving: list[tuple[_Weight, torch.Tensor]] = []
        self._in_backward = False
        for unit in self._units:
            unit.module.register_forward_pre_hook(self._pre_forward_hook(unit), with_kwargs=True)
            unit.module.register_forward_hook(self._post_forward_hook(unit), always_call=True)
            for weight in unit.weights:
                if weight.parameter.requires_grad:
                    weight.parameter.register_post_accumulate_grad_hook(self._gradient_hook(unit))
        model.register_state_dict_post_hook(lambda *what: self._into_state_dict(*what))

    def parameters(self) -> Iterator[torch.Tensor]:
        """What the optimizer steps: the units' parameters on the host, the others where they are."""
        for parameter in self._model.parameters():
            weight = self._weights.get(parameter)
            yield parameter if weight is None else weight.host

    # --- coming and going -------------------------------------------------------------------------------------

    def _start(self, number: int) -> None:
        """Starts the copies of a unit's weights to the device, if there is such a unit and it is not here."""
        if not 0 <= number < len(self._units):
            return
        unit = self._units[number]
        if unit.arrived is None:
            targets = [weight.fill() for weight in unit.weights]
            done = recorder("fetch", sum(t.nbytes for t in targets), number)
            unit.arrived = self._stream.run(unit.copy_in(targets), uses=targets, finished=done)

    def _wait_for_weights(self, unit: _Unit) -> None:
        self._start(unit.number)
        assert unit.arrived is not None, "it has been started"
        unit.arrived()
        unit.show()

    def _pre_forward_hook(self, unit: _Unit) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> None:
            self._wait_for_weights(unit)
            if not self._in_backward:  # there it is a recompute
                self._start(unit.number + 1)
                unit.versions = [version_of(w.host) for w in unit.weights]
            inputs = _with_gradient((args, kwargs))
            if inputs:
                call = object()
                unit.calls.add(call)
                register_multi_grad_hook(inputs, lambda _: self._done(unit, call), mode="all")

        return hook

    def _post_forward_hook(self, unit: _Unit) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            outputs = _with_gradient(output)
            if outputs:
                register_multi_grad_hook(outputs, lambda _: self._pre_backward(unit), mode="any")
            if not unit.in_backward:
                unit.leave()

        return hook

    def _pre_backward(self, unit: _Unit) -> None:
        """A gradient has reached the unit's output."""
        if unit.in_backward:
            return
        if unit.versions != [version_of(w.host) for w in unit.weights]:
            raise RuntimeError(
                f"the weights of unit {unit.number} have been changed between its forward and this backward (an "
                "optimizer's step?): gradients would be of neither model. Call backward before step."
            )
        self._queue_finish_backward()
        unit.in_backward = True
        unit.left = {w.parameter for w in unit.weights if w.parameter.requires_grad} | unit.calls
        unit.calls = set()
        self._wait_for_weights(unit)
        self._start(unit.number - 1)

    def _gradient_hook(self, unit: _Unit) -> Callable[[nn.Parameter], None]:
        def hook(parameter: nn.Parameter) -> None:
            gradient, parameter.grad = parameter.grad, None
            assert gradient is not None, "autograd has just made it"
            self._queue_finish_backward()
            weight = self._weights[parameter]
            buffer = _host_memory(weight.host)
            done = recorder("offload", buffer.nbytes, unit.number)
            self._stream.run(lambda: _copy(buffer, gradient), uses=[gradient], finished=done)
            self._arriving.append((weight, buffer))
            self._done(unit, parameter)

        return hook

    def _done(self, unit: _Unit, what: object) -> None:
        """One of the unit's gradients is there. After the last, its inputs' included, nobody needs its weights."""
        unit.left.discard(what)
        if unit.in_backward and not unit.left:
            unit.leave()

    def _queue_finish_backward(self) -> None:
        if not self._in_backward:
            self._in_backward = True
            after_backward(self._finish_backward)

    def _finish_backward(self) -> None:
        """Backward is over: what was not used up (unused parameters) goes too; gradients are put where they belong."""
        self._in_backward = False
        for unit in self._units:
            unit.in_backward = False
            unit.leave()
        self._stream.synchronize()
        for weight, buffer in self._arriving:
            if weight.host.grad is None:
                weight.host.grad = buffer
            else:
                weight.host.grad += buffer
        self._arriving.clear()

    # --- state ------------------------------------------------------------------------------------------------

    def _into_state_dict(
        self, module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any
    ) -> None:
        for name, parameter in self._names.items():
            if parameter in self._weights:
                state_dict[prefix + name] = self._weights[parameter].host.detach()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, torch.Tensor]) -> None:
        """Loads the model's state dict, parameters and buffers. ValueError, and nothing is
        changed, if it does not fit.
        """
        there = self._model.state_dict()
        wrong = [n for n in there.keys() | state_dict.keys() if n not in there or n not in state_dict
                 or there[n].shape != state_dict[n].shape]  # fmt: skip
        if wrong:
            raise ValueError(
                f"the state dict does not fit: {', '.join(sorted(wrong))} (missing, unexpected or of another shape)"
            )
        for name, value in there.items():
            value.copy_(state_dict[name])


class _Weight:
    """A parameter: its place on the device, which is empty most of the time, and its values on the host."""

    def __init__(self, parameter: nn.Parameter, folder: str | Path | None) -> None:
        self.parameter = parameter
        host = _host_memory(parameter, folder, mapped=not device.is_gpu(parameter.device))
        self.host = host.copy_(parameter.detach()).requires_grad_(parameter.requires_grad)
        self.full = parameter.detach().clone(memory_format=torch.contiguous_format)
        self.bytes = self.full.nbytes
        self.empty()

    def fill(self) -> torch.Tensor:
        """Room for the values: the place as bytes. Written through these, they do not count as a change in place."""
        self.full.untyped_storage().resize_(self.bytes)
        return bytes_of(self.full.untyped_storage())

    def empty(self) -> None:
        # whoever touches it now gets an error, not someone's memory
        self.parameter.data = self.full.new_empty(0)
        self.full.untyped_storage().resize_(0)


class _Unit:
    """A module whose weights come and go together."""

    def __init__(self, number: int, module: nn.Module, weights: list[_Weight]) -> None:
        self.number, self.module, self.weights = number, module, weights
        self.arrived: Callable[[], None] | None = None  # None: not here, and not on the way
        self.in_backward = False
        self.versions: list[int] = []
        self.calls: set[object] = set()  # forwards whose inputs' gradients are still to come
        self.left: set[object] = set()  # in backward: gradients to wait for

    def copy_in(self, targets: list[torch.Tensor]) -> Callable[[], None]:
        sources = [bytes_of(w.host.untyped_storage()) for w in self.weights]

        def work() -> None:
            for target, source in zip(targets, sources, strict=True):
                _copy(target, source[: len(target)])

        return work

    def show(self) -> None:
        for weight in self.weights:
            weight.parameter.data = weight.full

    def leave(self) -> None:
        if self.arrived is not None:
            self.arrived()
            self.arrived = None
            for weight in self.weights:
                weight.empty()


def _host_memory(
    like: torch.Tensor, folder: str | Path | None = None, mapped: bool = False
) -> torch.Tensor:
    """Host memory of that shape and type: pinned for a GPU, else, where `mapped`,
    a file's that has no name any more.
    """
    if device.is_gpu(like.device) or not mapped or not like.numel():
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=device.is_gpu())
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        flat = torch.from_file(file.name, shared=True, size=like.numel(), dtype=like.dtype)
    return flat.view(like.shape)


def _check_space(parameters: list[nn.Parameter], folder: str | Path | None) -> None:
    """A mapped file that finds no room ends the process without a word, so it is asked before."""
    needed = sum(p.nbytes for p in parameters)
    where = folder or tempfile.gettempdir()
    free = shutil.disk_usage(where).free
    if not device.is_gpu(parameters[0].device) and needed > free:
        raise ValueError(
            f"{needed} bytes of parameters do not fit into {where}, which has {free} free"
        )


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source, non_blocking=True)


def _with_gradient(value: Any) -> list[torch.Tensor]:
    return [t for t in nested.tensors(value) if t.requires_grad]
