"""What a module holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

BATCH_NORM = nn.modules.batchnorm._BatchNorm  # of which all kinds of it are


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Its own ones by attribute, without those of its children; what is written here is set."""
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Its own ones by attribute, without those of its children; what is written here is set."""
    return module._buffers


def own_modules(module: nn.Module) -> dict[str, nn.Module | None]:
    """Its children by attribute; what is written here is set."""
    return module._modules


def is_persistent(module: nn.Module, buffer: str) -> bool:
    """Whether state_dict() has the module's own buffer of that name."""
    return buffer not in module._non_persistent_buffers_set


class AsksBeforeConversion:
    """Put before nn.Module among a class's bases: `before_conversion` hears of .to(), .half()
    and the like, and may refuse; `after_conversion` hears that it is over.
    """

    def before_conversion(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool) -> None:
        """fn: what each parameter and buffer would be replaced by;  recurse: those of the children too."""
        raise NotImplementedError

    def after_conversion(self, recurse: bool) -> None:
        """A DTensor is now another one in the same object, and what was noted on it is gone."""

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        self.before_conversion(fn, recurse)
        converted = super()._apply(fn, recurse)  # type: ignore[misc]
        self.after_conversion(recurse)
        return converted
