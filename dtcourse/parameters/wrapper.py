"""What every wrapper round a module has in common: no_sync, and a state that is the module's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

from torch import nn

from dtcourse.parameters.deep_copies import RefusesCopies


class Wrapper(RefusesCopies, nn.Module):
    """Wraps `module`; its gradients are reduced over the ranks while require_backward_grad_sync is True."""

    module: nn.Module
    require_backward_grad_sync: bool
    names_in_whole: ClassVar = {"module": ""}  # parameters/naming.py

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Gradients of what runs inside stay on the rank; the next backward outside averages their sum.

        As in PyTorch: forward and backward both run inside.
        """
        before, self.require_backward_grad_sync = self.require_backward_grad_sync, False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    def state_dict(self, *args: Any, **keywords: Any) -> Any:
        """The wrapped module's own state: no "module." before the names, so it loads anywhere."""
        return self.module.state_dict(*args, **keywords)

    def load_state_dict(self, state_dict: Any, *args: Any, **keywords: Any) -> Any:
        """Loads into the wrapped module. Names that PyTorch's wrapper has prefixed are understood."""
        if state_dict and all(name.startswith("module.") for name in state_dict):
            state_dict = {name.removeprefix("module."): value for name, value in state_dict.items()}
        return self.module.load_state_dict(state_dict, *args, **keywords)


def unwrapped(module: Any) -> Any:
    """A module without the wrappers that data-parallel techniques have put round it."""
    while isinstance(module, Wrapper):
        module = module.module
    return module
