"""LAMB: layer-wise adaptation for Adam (You et al., arXiv 1904.00962, algorithm 2).

    m = b1 m + (1 - b1) g             v = b2 v + (1 - b2) g^2
    m_hat = m / (1 - b1^t)            v_hat = v / (1 - b2^t)
    r = m_hat / (sqrt(v_hat) + eps)   u = r + decay * w
    w = w - lr * |w| / |u| * u        (the ratio is 1 where either norm is 0)

As LARS does for SGD, it ties how far a layer moves in a step to its own length: lr * |w|, whatever Adam proposes.
The paper's algorithm adapts every tensor; the authors' code for BERT leaves biases and normalisation parameters
(one-dimensional here) to plain Adam without decay, and so does this. Memory: as Adam, two vectors of the parameters'
size. Of a layer that a technique has cut, the norms are the whole layer's, as in lars.py: all ranks call `step`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch.optim import Optimizer

from dtcourse.large_batch.lars import adapted_parameters
from dtcourse.parameters.grad_norm import norms_of_whole
from dtcourse.parameters.placement import local


class LAMB(Optimizer):
    """Adam with decoupled weight decay and a trust ratio for each parameter tensor.

    max_weight_norm: |w| counts as at most this in the ratio: the paper's phi, for which it gives no value
        (pytorch-lamb takes 10). None: phi(|w|) = |w|.
    adapt_one_dimensional: also adapt and decay biases and normalisation parameters.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-6,
        weight_decay: float = 0.0, bias_correction: bool = True, max_weight_norm: float | None = None,
        adapt_one_dimensional: bool = False,
    ) -> None:  # fmt: skip
        if lr < 0 or weight_decay < 0:
            raise ValueError(f"lr and weight_decay are 0 or more; got {lr} and {weight_decay}")
        if not all(0 <= b < 1 for b in betas):
            raise ValueError(f"betas lie in [0, 1); got {betas}")
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "bias_correction": bias_correction, "max_weight_norm": max_weight_norm,
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
        options = {w: group for group in self.param_groups for w in group["params"]}
        for w, group in options.items():
            if w.grad is not None:
                self._average(w, group)
        adapted = adapted_parameters(self.param_groups)
        w_norms = norms_of_whole(adapted, adapted)
        # Each u is made for its norm, and once more for the update: all at once would be a third vector in memory.
        u_norms = norms_of_whole(
            adapted,
            (self._direction(w, options[w]) if w.grad is not None else None for w in adapted),
        )
        ratios = {}
        for w, w_norm, u_norm in zip(adapted, w_norms, u_norms, strict=True):
            limited = w_norm
            if options[w]["max_weight_norm"] is not None:
                limited = w_norm.clamp(max=options[w]["max_weight_norm"])
            ones = torch.ones_like(w_norm)
            ratios[w] = torch.where((w_norm > 0) & (u_norm > 0), limited / u_norm, ones)
        for w, group in options.items():
            if w.grad is not None:
                u = self._direction(w, group, adapted=w in ratios)
                local(w).sub_(u * (group["lr"] * ratios.get(w, 1.0)))
        return loss

    def _average(self, w: torch.Tensor, group: dict[str, Any]) -> None:
        """Takes the gradient into the two averages."""
        state, (beta1, beta2) = self.state[w], group["betas"]
        g = local(cast("torch.Tensor", w.grad))
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(w), torch.zeros_like(w)
        state["step"] += 1
        local(state["exp_avg"]).lerp_(g, 1 - beta1)
        local(state["exp_avg_sq"]).mul_(beta2).addcmul_(g, g, value=1 - beta2)

    def _direction(
        self, w: torch.Tensor, group: dict[str, Any], adapted: bool = True
    ) -> torch.Tensor:
        """This rank's part of u; Adam's alone where the parameter is not adapted."""
        state, (beta1, beta2) = self.state[w], group["betas"]
        m_hat, v_hat = local(state["exp_avg"]), local(state["exp_avg_sq"])
        if group["bias_correction"]:
            m_hat = m_hat / (1 - beta1 ** state["step"])
            v_hat = v_hat / (1 - beta2 ** state["step"])
        u = m_hat / (v_hat.sqrt() + group["eps"])
        return u + group["weight_decay"] * local(w) if adapted else u
