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

Memory: one more vector of the parameters' size. A layer's norms are over the whole layer: where weights are sharded
over ranks, sum the squares over the ranks first, as clipping.py does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer


class LARS(Optimizer):
    """SGD with momentum and a trust ratio for each parameter tensor.

    trust: eta of the paper, 0.001 there. adapt_one_dimensional: also adapt biases and normalisation parameters.
    """

    needs_whole_parameters = True  # a layer's norm is of all of it: sharding refuses it on parts

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
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._update(w, w.grad, group)
        return loss

    def _update(self, w: torch.Tensor, g: torch.Tensor, group: dict[str, Any]) -> None:
        decay = group["weight_decay"]
        local_lr: float | torch.Tensor = 1.0
        if w.dim() > 1 or group["adapt_one_dimensional"]:
            local_lr = trust_ratio(w, g, decay, group["trust"], group["eps"])
        else:
            decay = 0.0
        update = (g + decay * w) * (group["lr"] * local_lr)
        state = self.state[w]
        velocity = state.setdefault("momentum_buffer", torch.zeros_like(w))
        velocity.mul_(group["momentum"]).add_(update)
        w.sub_(velocity)


def trust_ratio(
    w: torch.Tensor, g: torch.Tensor, decay: float, trust: float, eps: float = 1e-9
) -> torch.Tensor:
    """Trust * |w| / (|g| + decay * |w|), and 1 where either norm is zero (a layer that starts at zero must move)."""
    w_norm, g_norm = norm(w), norm(g)
    ratio = trust * w_norm / (g_norm + decay * w_norm + eps)
    return torch.where((w_norm > 0) & (g_norm > 0), ratio, torch.ones_like(ratio))


def norm(x: torch.Tensor) -> torch.Tensor:
    """The 2-norm in float32 at least: in fp16 the norm of a large layer is infinite, that of small gradients 0."""
    return torch.linalg.vector_norm(x, dtype=torch.promote_types(x.dtype, torch.float32))
