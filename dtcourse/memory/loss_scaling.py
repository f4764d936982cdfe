"""Loss scaling by hand: gradients too small for float16 survive backward, and overflow costs a step, not the run.

    scaler = GradScaler(device.current().type)      # torch.amp.GradScaler's API: only the import differs
    scaler.scale(loss).backward()                   # every gradient is `scale` times as large
    scaler.step(optimizer)                          # divides, and steps only if all gradients are finite
    scaler.update()                                 # overflow: half the scale; 2000 good steps: twice the scale

float16 has no number between 0 and 6e-8, and none above 65504. Gradients crowd at the low end: scaling the loss
scales them all, by the chain rule. The largest scale that does not overflow changes during training, so it is searched
for. bfloat16 has float32's range and needs none of this. Source: Micikevicius et al., arXiv 1710.03740, section 3.2.

Memory: a number. Messages: none; with group=..., one all-reduce of 4 bytes per optimizer and step; with model=..., one
per axis over which its parameters are cut or copied.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from dtcourse import device as devices
from dtcourse.memory.scaled_gradients import gradients_of
from dtcourse.parameters.overflow import on_any_part
from dtcourse.parameters.placement import local
from dtcourse.torch_private import check_finite_and_multiply_, scaler_steps, step_under_scaler


@dataclass
class _Progress:
    """How far this step is for one optimizer."""

    # 1.0 where a gradient was not finite; None before unscale_.
    overflow: torch.Tensor | None = None
    stepped: bool = False


class StaticLossScaler:
    """A scale that never changes: simple, and right as long as no gradient overflows.

    scale:   factor on the loss; a power of two loses no bits
    enabled: False makes every method pass its argument through
    group:   ranks that hold different parts of the gradients (sharded, tensor or pipeline parallel): overflow on one
             is overflow on all. None looks at this rank alone, which is enough where gradients are averaged over
             ranks, since an average with an infinity in it is infinite everywhere.
    model:   in the place of group, where the parts lie over several axes: the model says which (`pipeline.module` of a
             pipeline). Average first, then `unscale_`, then parameters.clipping.clip_grad_norm, then `step`

    Of a pipeline the last stage's ranks alone have a loss: pipeline.step(x, target, scale=scaler.scale), on all ranks.

    `step` raises OverflowError, on every rank of the group, where a gradient is not finite; nothing is updated.
    """

    def __init__(
        self,
        scale: float = 2.0**10,
        *,
        enabled: bool = True,
        group: dist.ProcessGroup | None = None,
        model: nn.Module | None = None,
    ) -> None:
        if group is not None and model is not None:
            raise ValueError("group and model both say who is asked for overflow: pass one of them")
        self._scale = _checked_scale(scale)
        self._enabled = enabled
        self.group, self.model = group, model
        self._progress: dict[Optimizer, _Progress] = {}
        self._scaled = False  # `scale` was called in this step

    def scale(self, outputs: Any) -> Any:
        """Multiplies a loss, or every tensor of a list, tuple or iterable of them, by the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, torch.Tensor):
            self._scaled = True
            # A float32 tensor, not a number: a float16 loss of no dimension becomes float32 and cannot overflow here.
            return outputs * torch.full((), self._scale, device=outputs.device)
        if isinstance(outputs, list | tuple):
            return type(outputs)(self.scale(output) for output in outputs)
        if isinstance(outputs, Iterable):
            return map(self.scale, outputs)
        raise ValueError(f"scale takes tensors or iterables of them; got {type(outputs).__name__}")

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides the optimizer's gradients by the scale, for clipping or looking at them; `step` does it otherwise.

        Once an optimizer and step, after the last backward. ValueError for float16 gradients: they would vanish here.
        """
        if not self._enabled:
            return
        progress = self._progress.setdefault(optimizer, _Progress())
        if progress.stepped:
            raise RuntimeError("unscale_ after step: the gradients have been used already")
        if progress.overflow is not None:
            raise RuntimeError(
                "unscale_ was called twice for this optimizer since the last update: the gradients would be "
                f"divided by {self._scale:g} twice"
            )
        if not self._scaled:
            raise RuntimeError(
                "no loss was scaled in this step: call scale(loss).backward() first (of a pipeline, "
                "pipeline.step(x, target, scale=scaler.scale)), or the gradients, which are not "
                f"{self._scale:g} times too large, would be made that much too small"
            )
        gradients = gradients_of(optimizer)
        if self.model is not None:  # a DTensor would ask the ranks of its own mesh, and no others
            gradients = [local(gradient) for gradient in gradients]
        if not gradients and self.group is None and self.model is None:
            raise RuntimeError(
                "none of the optimizer's parameters has a gradient: backward comes first "
                "(and with MasterWeights, copy_grads_to_masters)"
            )
        progress.overflow = self._divide(gradients)

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscales where that has not been done, and calls optimizer.step(*args, **kwargs) if all is finite."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise ValueError("a closure runs backward again, unscaled: it cannot be used here")
        progress = self._progress.setdefault(optimizer, _Progress())
        if progress.stepped:
            raise RuntimeError("step was called twice for this optimizer since the last update")
        if progress.overflow is None:
            self.unscale_(optimizer)
        progress.stepped = True
        if _happened(progress) and not self._steps_after_overflow(optimizer):
            return None
        return step_under_scaler(optimizer, progress.overflow, *args, **kwargs)

    def update(self) -> None:
        """The step is over, for all optimizers."""
        self._progress = {}
        self._scaled = False

    def get_scale(self) -> float:
        """The factor on the loss; 1.0 where scaling is off."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether it scales at all."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` takes; empty where scaling is off."""
        return {"scale": self._scale} if self._enabled else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there. ValueError, and nothing is changed, where something is missing or no valid scale."""
        if self._enabled:
            self._scale = _checked_scale(_entries(state_dict, ["scale"])["scale"])

    def _divide(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        """Divides by the scale. 1.0 where a gradient of a rank of the group was not finite, else 0.0; does not wait."""
        where = gradients[0].device if gradients else devices.current()
        found = torch.zeros((), device=where)
        alike: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for gradient in gradients:
            alike.setdefault((gradient.device, gradient.dtype), []).append(gradient.detach())
        for (device, _), several in alike.items():
            # gradient.isfinite().all() and gradient.mul_(), in one pass over memory instead of three.
            found = found.maximum(
                check_finite_and_multiply_(several, 1 / self._scale, device).to(where)
            )
        if self.group is not None:
            dist.all_reduce(found, op=dist.ReduceOp.MAX, group=self.group)
        return found if self.model is None else on_any_part(self.model, found)

    def _steps_after_overflow(self, optimizer: Optimizer) -> bool:
        bad = sum(not bool(g.isfinite().all()) for g in gradients_of(optimizer))
        raise OverflowError(
            f"{bad} of {len(gradients_of(optimizer))} gradients of this rank are not finite at a loss scale of "
            f"{self._scale:g}: take a smaller scale, or GradScaler, which looks for one; if they are not finite at "
            "1 either, dtcourse.memory.raise_on_overflow(model) names the module"
        )


class GradScaler(StaticLossScaler):
    """A scale that is looked for: down when a gradient overflows, up after `growth_interval` steps without one.

    device:          as torch.amp.GradScaler's first argument; the scale itself is a number and lives nowhere
    init_scale:      the first scale; too large costs a few skipped steps, too small thousands of poor ones
    growth_factor, backoff_factor, growth_interval: above 1, below 1, steps
    min_scale:       `update` raises OverflowError rather than go below: then it is not the scale that overflows.
                     PyTorch's goes on halving for ever, and no step is ever taken.
    enabled, group, model: as StaticLossScaler's

    Its state dict is torch.amp.GradScaler's, and each loads the other's.
    """

    def __init__(
        self,
        device: str | torch.device | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        min_scale: float = 2.0**-14,
        group: dist.ProcessGroup | None = None,
        model: nn.Module | None = None,
    ) -> None:
        super().__init__(init_scale, enabled=enabled, group=group, model=model)
        _check_rules(growth_factor, backoff_factor, growth_interval)
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval, self._min_scale = growth_interval, min_scale
        self._good_steps = 0  # in a row, since the scale last changed

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """The step is over, for all optimizers: takes the next scale, or `new_scale`."""
        if not self._enabled:
            return
        checks = [p for p in self._progress.values() if p.overflow is not None]
        if new_scale is not None:
            self._scale = _checked_scale(float(new_scale))
        elif not checks:
            raise RuntimeError(
                "no gradients were looked at since the last update: call step(optimizer) first"
            )
        elif any(_happened(p) for p in checks):
            smaller = _float32(self._scale * self._backoff_factor)
            if smaller < self._min_scale:
                raise OverflowError(
                    f"gradients are not finite at a loss scale of {self._scale:g}, so a smaller one will not help: "
                    "the loss or the model itself overflows. dtcourse.memory.raise_on_overflow(model) names the module"
                )
            self._scale, self._good_steps = smaller, 0
        else:
            self._good_steps = (self._good_steps + 1) % self._growth_interval
            if self._good_steps == 0:
                larger = _float32(self._scale * self._growth_factor)
                self._scale = larger if math.isfinite(larger) else self._scale
        super().update()

    def state_dict(self) -> dict[str, Any]:
        """torch.amp.GradScaler's five entries; empty where scaling is off."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._good_steps,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there. ValueError, and nothing is changed, where an entry is missing or makes no sense."""
        if not self._enabled:
            return
        names = ["scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"]
        entries = _entries(state_dict, names)
        scale, growth, backoff, interval, tracker = (entries[name] for name in names)
        _check_rules(growth, backoff, interval)
        if not 0 <= tracker < interval:
            raise ValueError(
                f"_growth_tracker counts the good steps before growth, 0 to {interval - 1}; got {tracker}"
            )
        self._scale, self._good_steps = _checked_scale(scale), tracker
        self._growth_factor, self._backoff_factor, self._growth_interval = growth, backoff, interval

    def _steps_after_overflow(self, optimizer: Optimizer) -> bool:
        """Most optimizers' step is skipped. One whose ranks have a meeting in it skips its own part of it by itself."""
        return scaler_steps(optimizer)


def _happened(progress: _Progress) -> bool:
    assert progress.overflow is not None, "unscale_ has been called"
    return bool(progress.overflow.item())


def _float32(number: float) -> float:
    """Rounded as PyTorch's scaler rounds, which keeps its scale in a float32 tensor."""
    return torch.tensor(number, dtype=torch.float32).item()


def _checked_scale(scale: float) -> float:
    if not (isinstance(scale, int | float) and math.isfinite(scale) and scale > 0):
        raise ValueError(f"a loss scale is a finite number above 0; got {scale!r}")
    return _float32(scale)


def _check_rules(growth_factor: float, backoff_factor: float, growth_interval: int) -> None:
    if not growth_factor > 1:
        raise ValueError(f"growth_factor is above 1; got {growth_factor}")
    if not 0 < backoff_factor < 1:
        raise ValueError(f"backoff_factor is between 0 and 1; got {backoff_factor}")
    if not growth_interval >= 1:
        raise ValueError(f"growth_interval is at least one step; got {growth_interval}")


def _entries(state_dict: dict[str, Any], names: list[str]) -> dict[str, Any]:
    missing = [name for name in names if name not in state_dict]
    if missing:
        why = "it is empty: saved by a scaler that was off?" if not state_dict else "damaged?"
        raise ValueError(f"the scaler's state dict lacks {', '.join(missing)} ({why})")
    return {name: state_dict[name] for name in names}
