"""LARS, layer-wise adaptive rate scaling (You, Gitman and Ginsburg, arXiv 1708.03888).

One learning rate for all layers fails for large batches, because the ratio of a layer's weights to its gradients
differs by orders of magnitude between layers: one that suits a layer tears another apart. LARS gives each layer

    local_lr = trust * |w| / (|g| + decay * |w|)
    velocity = momentum * velocity + lr * local_lr * (g + decay * w)
    w        = w - velocity

so that without momentum a step moves a layer by at most lr * trust of its own length, whatever its gradient.
Biases and normalisation parameters (one-dimensional) take plain SGD without decay, as the authors' code has it: their
norms say little. The velocity holds the learning rate, as the paper has it: a change of it acts on what comes, not on
what is under way (timm and apex multiply later; with a constant one the two are the same).

Memory: one more vector of the parameters' size. A layer's norms are of the whole layer: where a technique has cut it,
each rank's squares are added up over the ranks that hold different parts, with one all-reduce per axis and kind of norm
for all layers together. So all ranks call `step`, whether their parts have gradients or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from dtcourse.parameters.grad_norm import norms_of_whole
from dtcourse.parameters.placement import local, placement_of


class LARS(Optimizer):
    """SGD with momentum and a trust ratio for each parameter tensor.

    trust: eta of the paper, 0.001 there. adapt_one_dimensional: also adapt biases and normalisation parameters.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, momentum: float = 0.9, weight_decay: float = 0.0,
        trust: float = 0.001, eps: float = 1e-9, adapt_one_dimensional: bool = False,
    ) -> None:  # fmt: skip
        for name, value in (
            ("lr", lr),
            ("momentum", momentum),
            ("weight_decay", weight_decay),
            ("trust", trust),
        ):
            if value < 0:
                raise ValueError(f"{name} is 0 or more; got {value}")
        defaults = {
            "lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust, "eps": eps,
            "adapt_one_dimensional": adapt_one_dimensional,
        }  # fmt: skip
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step; closure recomputes the loss, as in torch's optimizers."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        adapted = adapted_parameters(self.param_groups)
        w_norms = norms_of_whole(adapted, adapted)
        g_norms = norms_of_whole(adapted, (w.grad for w in adapted))
        norms = dict(zip(adapted, zip(w_norms, g_norms, strict=True), strict=True))
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._update(w, group, norms.get(w))
        return loss

    def _update(
        self, w: Any, group: dict[str, Any], norms: tuple[torch.Tensor, torch.Tensor] | None
    ) -> None:
        decay = group["weight_decay"] if norms is not None else 0.0
        local_lr: float | torch.Tensor = 1.0
        if norms is not None:
            local_lr = trust_ratio(*norms, decay, group["trust"], group["eps"])
        mine = local(w)
        update = (local(w.grad) + decay * mine) * (group["lr"] * local_lr)
        if "momentum_buffer" not in self.state[w]:
            self.state[w]["momentum_buffer"] = torch.zeros_like(w)
        velocity = local(self.state[w]["momentum_buffer"])
        velocity.mul_(group["momentum"]).add_(update)
        mine.sub_(velocity)


def adapted_parameters(groups: Iterable[dict[str, Any]]) -> list[torch.Tensor]:
    """Those that get a learning rate of their own: all but biases and normalisation parameters, unless asked for.

    With or without a gradient: what one rank holds no gradient of, another may.
    """
    return [
        w
        for group in groups
        for w in group["params"]
        if len(placement_of(w).shape) > 1 or group["adapt_one_dimensional"]
    ]


def trust_ratio(
    w_norm: torch.Tensor, g_norm: torch.Tensor, decay: float, trust: float, eps: float = 1e-9
) -> torch.Tensor:
    """Trust * |w| / (|g| + decay * |w|), and 1 where either norm is zero (a layer that starts at zero must move)."""
    ratio = trust * w_norm / (g_norm + decay * w_norm + eps)
    return torch.where((w_norm > 0) & (g_norm > 0), ratio, torch.ones_like(ratio))
