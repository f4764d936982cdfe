"""Every storage of a training step from its birth to its death: the curve of live bytes, its peak, what was alive then.

A TorchDispatchMode sees each operator's results below autograd, in the forward pass, the backward pass and the
optimizer's step alike; a weak reference to each storage says when it is freed. The same code runs on a CPU, on a GPU
and, with FakeTensors, on nothing at all (dtcourse.simulator.tracing), so a prediction and a measurement are one count.

What it cannot see: memory inside an operator (a matrix product's workspace), and what the allocator adds (rounding,
cached blocks). PyTorch's own relative of this is torch.distributed._tools.mem_tracker.

    with MemoryTracker(model, optimizer) as tracker:
        model.loss(x, y).backward()
        optimizer.step()
    tracker.peak.bytes, tracker.peak.op, tracker.peak.alive; tracker.history.curve()
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from dtcourse.profiling.memory import held_tensors, local
from dtcourse.profiling.memory_history import Allocation, History, Peak
from dtcourse.torch_private import DEVICE_OF, TorchDispatchMode, in_backward, tree_leaves


class MemoryTracker(TorchDispatchMode):
    """Follows all storages that are used while it is entered; `history` has what it saw.

    model: one module or several; their parameters, buffers and gradients are counted from the start
    optimizer: its state as well; its step is the phase "optimizer"
    inputs: tensors of the batch; they are counted as "other", and are not activations

    A storage that was there before and is none of these is counted from the moment when an operator first uses it.
    """

    def __init__(
        self,
        model: nn.Module | Iterable[nn.Module] = (),
        optimizer: torch.optim.Optimizer | None = None,
        inputs: Iterable[torch.Tensor] = (),
    ) -> None:
        super().__init__()
        self._models = [model] if isinstance(model, nn.Module) else list(model)
        self._optimizer = optimizer
        self._inputs = list(inputs)
        self.history = History()
        self.ops = 0
        self._numbers: dict[int, int] = {}  # id of a living storage -> its number in the history
        self._watch: dict[int, weakref.ref] = {}
        self._module: list[str] = []
        self._stepping = self._was_backward = False
        self._handles: list[Any] = []

    @property
    def peak(self) -> Peak:
        """The moment with the most live bytes, and what was alive then."""
        return self.history.peak

    @property
    def activation_bytes(self) -> int:
        """What the forward pass left for the backward pass."""
        return self.history.activation_bytes()

    def mark(self, tensors: Iterable[torch.Tensor], category: str) -> None:
        """Puts storages that have none yet into a category; those not seen yet count from now on."""
        for tensor in tensors:
            number = self._see(tensor, "", "before")
            if number is not None and self.history.allocations[number].category == "other":
                self.history.allocations[number].category = category

    def __enter__(self) -> MemoryTracker:
        self._mark_held(self._optimizer)
        self.mark(self._inputs, "other")
        self._install_hooks()
        self._resize = torch.UntypedStorage.resize_
        torch.UntypedStorage.resize_ = self._resized()  # type: ignore[method-assign]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._mark_held(self._optimizer)
        self._watch.clear()  # what dies from here on is no longer followed
        self.history.find_activations()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if func is DEVICE_OF:
            return func(*args)
        self.ops += 1
        backward = not self._stepping and in_backward()
        if backward and not self._was_backward:
            self.history.backwards.append(len(self.history.events))
        self._was_backward = backward
        phase = "optimizer" if self._stepping else "backward" if backward else "forward"
        for leaf in tree_leaves((args, kwargs)):  # what was there before and is used now
            if isinstance(leaf, torch.Tensor):
                self._see(leaf, "", "before")
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf, str(func.name()).removeprefix("aten::"), phase)
        return result

    def _see(self, tensor: torch.Tensor, op: str, phase: str) -> int | None:
        """The number of the tensor's storage (of a DTensor: its part's); a new one is added to the history.

        None where there is no memory, as on the meta device.
        """
        tensor = local(tensor)
        if tensor.is_meta:
            return None
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # sparse tensors and wrappers have none
            return None
        known = self._numbers.get(id(storage))
        if known is not None:
            if self.history.allocations[known].bytes == storage.nbytes():
                return known
            self._died(id(storage))  # an operator has resized it (out=...)
        module = self._module[-1] if self._module and phase != "before" else ""
        shape = tuple(tensor.shape)
        return self._born(
            storage, op=op, module=module, phase=phase, shape=shape, dtype=tensor.dtype
        )

    def _born(self, storage: torch.UntypedStorage, **what: Any) -> int:
        key = id(storage)
        allocation = Allocation(storage.nbytes(), born=len(self.history.events), **what)
        self._numbers[key] = self.history.born(allocation, self.ops)
        self._watch[key] = weakref.ref(storage, lambda _: self._died(key))
        return self._numbers[key]

    def _died(self, key: int) -> None:
        self._watch.pop(key, None)
        number = self._numbers.pop(key, None)
        if number is not None:
            self.history.died(number, self.ops)

    def _mark_held(self, optimizer: torch.optim.Optimizer | None) -> None:
        for category, tensors in held_tensors(self._models, optimizer).items():
            self.mark(tensors, category)

    def _install_hooks(self) -> None:
        def entered(name: str) -> Callable:
            return lambda module, args: self._module.append(name)

        def left(module: nn.Module, args: Any, result: Any) -> None:
            self._module.pop()

        def stepping(now: bool) -> Callable:
            def hook(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
                self._stepping = now
                self._mark_held(optimizer)

            return hook

        for model in self._models:
            for name, module in model.named_modules():
                self._handles.append(module.register_forward_pre_hook(entered(name)))
                self._handles.append(module.register_forward_hook(left, always_call=True))
            for p in model.parameters():
                if p.requires_grad:
                    hook = p.register_post_accumulate_grad_hook(
                        lambda p: self.mark([p.grad] if p.grad is not None else [], "gradients")
                    )
                    self._handles.append(hook)
        if self._optimizer is not None:
            self._handles.append(self._optimizer.register_step_pre_hook(stepping(True)))
            self._handles.append(self._optimizer.register_step_post_hook(stepping(False)))

    def _resized(self) -> Callable:
        """FSDP frees a gathered parameter by storage.resize_(0), which is no operator."""
        resize = self._resize

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            number = self._numbers.get(id(storage))
            if number is not None and self.history.allocations[number].bytes != size:
                old = self.history.allocations[number]
                self._died(id(storage))
                self._born(
                    storage, op="resize_", module=old.module, phase=old.phase, shape=old.shape,
                    dtype=old.dtype, category=old.category,
                )  # fmt: skip
            return result

        return resize_
