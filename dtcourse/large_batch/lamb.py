"""LAMB: layer-wise adaptation for Adam (You et al., arXiv 1904.00962, algorithm 2).

    m = b1 m + (1 - b1) g             v = b2 v + (1 - b2) g^2
    m_hat = m / (1 - b1^t)            v_hat = v / (1 - b2^t)
    r = m_hat / (sqrt(v_hat) + eps)   u = r + decay * w
    w = w - lr * |w| / |u| * u        (the ratio is 1 where either norm is 0)

As LARS does for SGD, it ties how far a layer moves in a step to its own length: lr * |w|, whatever Adam proposes.
The paper's algorithm adapts every tensor; the authors' code for BERT leaves biases and normalisation parameters
(one-dimensional here) to plain Adam without decay, and so does this. Memory: as Adam, two
vectors of the parameters' size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from dtcourse.large_batch.lars import norm


class LAMB(Optimizer):
    """Adam with decoupled weight decay and a trust ratio for each parameter tensor.

    max_weight_norm: |w| counts as at most this in the ratio: the paper's phi, for which it gives no value
        (pytorch-lamb takes 10). None: phi(|w|) = |w|.
    adapt_one_dimensional: also adapt and decay biases and normalisation parameters.
    """

    needs_whole_parameters = True  # a layer's norm is of all of it: sharding refuses it on parts

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
        for group in self.param_groups:
            for w in group["params"]:
                if w.grad is not None:
                    self._update(w, w.grad, group)
        return loss

    def _update(self, w: torch.Tensor, g: torch.Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[w], group["betas"]
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(w), torch.zeros_like(w)
        state["step"] += 1
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m.lerp_(g, 1 - beta1)
        v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        m_hat, v_hat = m, v
        if group["bias_correction"]:
            m_hat = m / (1 - beta1 ** state["step"])
            v_hat = v / (1 - beta2 ** state["step"])
        u = m_hat / (v_hat.sqrt() + group["eps"])
        if w.dim() < 2 and not group["adapt_one_dimensional"]:
            w.sub_(group["lr"] * u)
            return
        u = u + group["weight_decay"] * w
        w_norm, u_norm = norm(w), norm(u)
        if group["max_weight_norm"] is not None:
            w_norm = w_norm.clamp(max=group["max_weight_norm"])
        ratio = torch.where((w_norm > 0) & (u_norm > 0), w_norm / u_norm, torch.ones_like(w_norm))
        w.sub_(u * (group["lr"] * ratio))
