"""1-bit Adam (Tang et al. 2102.02888): Adam's momentum travels in one bit a number,
once its variance no longer changes much.

    model = ...                                                    # the same on every rank, and no DDP around it
    optimizer = OneBitAdam(model.parameters(), lr=1e-3, warmup_steps=1000)
    loss.backward();  optimizer.step()                             # the ranks talk here

Adam divides by the root of v, a mean of squared gradients. A compressed gradient has wrong squares, so compressing what
Adam is given breaks it, with error feedback too. Hence two stages:

    warm-up      Adam with the mean of all ranks' gradients, uncompressed; at its end v is frozen
    compression  m_i = b1 m + (1 - b1) g_i on each rank i;
                 m = mean of the m_i, compressed on both ways with error feedback;
                 w = w - lr m_hat / (sqrt(v_hat) + eps)

With v frozen a step is linear in m, so what error feedback sends late is only late. The bias corrections are Adam's:
v's stays as it was when v was frozen. A number whose v is 0 has had no gradient in the warm-up, and stays where it is:
a sign gives it an m that is not 0, and m / eps would throw it far away (DeepSpeed leaves such numbers to a mask that
the user gives).

Bytes sent by each of p ranks, of n numbers: in the warm-up as an all-reduce; afterwards 2 (p - 1) c(n_l / p) for each
tensor of n_l numbers, c(n) = 4 + ceil(n / 8): a 32nd. Messages: two collectives a tensor. Nothing overlaps backward, as
in the paper.
Memory: Adam's 2 n, and n + n / p for what has been left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from dtcourse.compression.compressor import Compressor, require_contraction
from dtcourse.compression.quantized.signs import ScaledSign
from dtcourse.compression.wire.averaging import Residuals, average
from dtcourse.compression.wire.of_model import check_whose, whose
from dtcourse.parameters.replicas import Group


class OneBitAdam(Optimizer):
    """Adam that averages over the ranks itself: gradients during warmup_steps steps, then momentum, compressed.

    warmup_steps: 1 or more; the paper takes until v changes slowly, 15 to 20% of all steps in its experiments
    weight_decay: added to the gradient, as Adam's
    compressor:   of the momentum, a contraction; default ScaledSign()
    group:        the ranks that share the batch

    A parameter without a gradient counts as one of zero: another rank may have one. state_dict() has what this rank has
    left out, so each rank saves and loads its own; with another number of ranks, call reset_error_feedback() after
    loading. Gradients are each rank's own: whether to skip a step (not finite, say) the ranks must decide together.
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8,
        weight_decay: float = 0.0, *, warmup_steps: int, compressor: Compressor | None = None, group: Group = None,
    ) -> None:  # fmt: skip
        if lr < 0 or weight_decay < 0:
            raise ValueError(f"lr and weight_decay are 0 or more; got {lr} and {weight_decay}")
        if not all(0 <= b < 1 for b in betas):
            raise ValueError(f"betas lie in [0, 1); got {betas}")
        if warmup_steps < 1:
            raise ValueError(
                "warmup_steps is 1 or more, for without a warm-up there is no variance to divide by; got "
                f"{warmup_steps}"
            )
        self.warmup_steps, self.group = warmup_steps, group
        self.compressor = ScaledSign() if compressor is None else compressor
        # Whose the residuals are that were loaded, if another rank's.
        self._loaded_whose: dict[str, int] | None = None
        require_contraction(self.compressor)
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Takes one step, on all ranks; closure recomputes the loss, as in torch's optimizers."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        number = 0
        for group in self.param_groups:
            for w in group["params"]:
                self.compressor.slot, number = number, number + 1
                if w.requires_grad:
                    self._update(w, torch.zeros_like(w) if w.grad is None else w.grad, group)
        return loss

    def reset_error_feedback(self) -> None:
        """Forgets what has been left out: after a jump in the weights, or with another number of ranks."""
        for state in self.state.values():
            state.pop("left_out", None)
            state.pop("left_out_of_part", None)
        self._loaded_whose = None

    def state_dict(self) -> dict[str, Any]:
        """As torch's optimizers', with what this rank has left out, and what the compressor remembers."""
        saved: dict[str, Any] = super().state_dict()
        return {**saved, **whose(self.group), "compressor": self.compressor.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes what this rank's state_dict() was.

        Raises ValueError for one of other shapes; the next step does, where another rank had left out what is in it.
        """
        weights = [w for group in self.param_groups for w in group["params"]]
        saved = [state_dict["state"].get(number, {}) for number in range(len(weights))]
        shapes = [tuple(s["exp_avg"].shape) if s else None for s in saved]
        here = [tuple(w.shape) for w in weights]
        if any(s not in (None, w) for s, w in zip(shapes, here, strict=True)):
            raise ValueError(
                f"the saved state is of parameters of shapes {shapes}, and these have {here}"
            )
        super().load_state_dict(state_dict)
        # torch gives what a parameter has the parameter's dtype; what is left out keeps the compressor's.
        for w, of in zip(weights, saved, strict=True):
            for name in {"left_out", "left_out_of_part"} & set(of):
                self.state[w][name] = of[name].to(w.device, copy=True)
        self.compressor.load_state_dict(state_dict.get("compressor", {}))
        there = {name: state_dict.get(name, mine) for name, mine in whose(self.group).items()}
        self._loaded_whose = None if there == whose(self.group) else there

    def _update(self, w: Tensor, g: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[w], group["betas"]
        if not state:
            state["step"] = 0
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(w), torch.zeros_like(w)
        state["step"] += 1
        m, v = state["exp_avg"], state["exp_avg_sq"]
        g = g + group["weight_decay"] * w
        if state["step"] <= self.warmup_steps:
            dist.all_reduce(g, group=self.group)
            g /= dist.get_world_size(self.group)
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
        else:
            m.copy_(self._averaged(torch.lerp(m, g, 1 - beta1), state))
        m_hat = m / (1 - beta1 ** state["step"])
        v_hat = v / (1 - beta2 ** min(state["step"], self.warmup_steps))
        update = m_hat / (v_hat.sqrt() + group["eps"])
        w.sub_(torch.where(v > 0, update, torch.where(v == 0, 0.0, v)), alpha=group["lr"])

    def _averaged(self, m: Tensor, state: dict[str, Any]) -> Tensor:
        """The mean of all ranks' momenta of one tensor, as the compressor lets it through."""
        takes, n, p = self.compressor.takes, m.numel(), dist.get_world_size(self.group)
        own, part = state.get("left_out"), state.get("left_out_of_part")
        if own is not None and self._loaded_whose is not None:
            check_whose(
                self._loaded_whose, self.group, "call reset_error_feedback() after loading it"
            )
        if part is not None and len(part) != -(-n // p):
            raise ValueError(
                f"this rank has left out a part of {len(part)} numbers, and with {p} ranks its part of {n} is "
                f"{-(-n // p)}: "
                "the state comes from another number of ranks. Call reset_error_feedback() after loading it"
            )
        residuals = Residuals(own, part)
        mean = average(m.flatten().to(takes), self.compressor, self.group, residuals)
        state["left_out"] = residuals.own
        if residuals.part is not None:
            state["left_out_of_part"] = residuals.part
        return mean.view_as(m)
