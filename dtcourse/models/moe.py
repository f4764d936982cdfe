"""A mixture of experts: many MLPs, of which each token goes through a few. A gate chooses, and learns to choose.

    gate      scores each token for each expert and makes a Routing: pairs of token and expert, with a weight each
              (gates.py)
    capacity  cuts what is too much for an expert: those tokens skip it (`with_capacity`); without, nothing is dropped
    experts   compute their tokens, all experts in one grouped product (dtcourse.grouped_mm)
    losses    keep the gate from sending everything to a few experts

Parameters grow with the number of experts E, operations per token only with the k that it visits. Sources: Shazeer et
al. 1701.06538, Switch Transformer, Fedus et al. 2101.03961 (capacity, the balancing loss), ST-MoE, Zoph et al.
2202.08906 (z-loss).

Shape suffixes: N tokens, D d_model, F width of an expert, E experts, R routes: pairs of a token and an expert.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtcourse.grouped_mm import grouped_mm
from dtcourse.models.gates import OneForward, Routing


def with_capacity(routing: Routing, capacity: int, before_R: Tensor | int = 0) -> Routing:
    """At most `capacity` tokens for each expert: the first in the order of preference stay, the others are dropped.

    before_R: how many tokens that are not in this routing come before each pair at its expert
    """
    if capacity < 1:
        raise ValueError(f"an expert's capacity is at least 1 token; got {capacity}")
    chosen_RE = F.one_hot(routing.experts_R, routing.logits_NE.shape[1])
    place_R = (chosen_RE.cumsum(0) * chosen_RE).sum(1)  # 1 for an expert's first token, 2, ...
    return routing.kept(place_R + before_R <= capacity)


def capacity_of(tokens: int, num_experts: int, k: int, factor: float) -> int:
    """ceil(factor k N / E), at least 1: with factor 1 just enough where all experts get as many (Switch, equation 3;
    there k = 1).

    Of no tokens, too, as a rank may have none: what raises on one rank alone leaves the others waiting.
    """
    if not factor > 0:
        raise ValueError(f"a capacity factor is above 0; got {factor}")
    return max(1, math.ceil(factor * k * tokens / num_experts))


# --- losses ---------------------------------------------------------------------------------------------------------


def balancing_loss(counts_E: Tensor, mean_scores_E: Tensor) -> Tensor:
    """E sum_e f_e P_e: 1 where all experts have as many tokens; E where one has all (Switch, 2101.03961, equation 4).

    f_e: the expert's share of all pairs, a constant;  P_e: the mean over tokens of its score, where the gradient goes
    Both are sums over tokens before they are multiplied, so the loss of a whole batch is not the mean of its parts'.
    """
    shares_E = counts_E / counts_E.sum().clamp_min(1)
    return len(counts_E) * (shares_E.to(mean_scores_E) * mean_scores_E).sum()


# --- experts --------------------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """E MLPs of one shape, their weights in three dims: (E, D, F) and back. GELU, or SwiGLU with a third weight.

    A row of dim 0 is an expert, which is also how they are given out to ranks.
    """

    def __init__(
        self, num_experts: int, d_model: int, d_ff: int, *, kind: str = "gelu", bias: bool = False
    ) -> None:
        super().__init__()
        if kind not in ("gelu", "swiglu"):
            raise ValueError(f"experts are 'gelu' or 'swiglu'; got {kind!r}")
        self.num_experts = num_experts
        self.gate = nn.Parameter(torch.empty(num_experts, d_model, d_ff)) if kind == "swiglu" else None  # fmt: skip
        self.up = nn.Parameter(torch.empty(num_experts, d_model, d_ff))
        self.down = nn.Parameter(torch.empty(num_experts, d_ff, d_model))
        self.gate_bias = (
            nn.Parameter(torch.zeros(num_experts, d_ff)) if bias and kind == "swiglu" else None
        )
        self.up_bias = nn.Parameter(torch.zeros(num_experts, d_ff)) if bias else None
        self.down_bias = nn.Parameter(torch.zeros(num_experts, d_model)) if bias else None
        for weight in (self.gate, self.up, self.down):
            if weight is not None:  # as nn.Linear of one expert
                bound = 1 / math.sqrt(weight.shape[1])
                nn.init.uniform_(weight, -bound, bound)

    def forward(self, x_RD: Tensor, counts_E: Tensor) -> Tensor:
        """x_RD: rows in the order of the experts, counts_E of each -> (R, D), each row through its expert."""
        y_RD = self.product(self.hidden(x_RD, counts_E), self.down, counts_E)
        return self.plus(y_RD, self.down_bias, counts_E)

    def hidden(self, x_RD: Tensor, counts_E: Tensor) -> Tensor:
        """The first half, up to what `down` is multiplied with. (R, F)"""
        up_RF = self.plus(self.product(x_RD, self.up, counts_E), self.up_bias, counts_E)
        if self.gate is None:
            return F.gelu(up_RF)
        gate_RF = self.plus(self.product(x_RD, self.gate, counts_E), self.gate_bias, counts_E)
        return F.silu(gate_RF) * up_RF

    @staticmethod
    def product(x_RD: Tensor, weight: Tensor, counts_E: Tensor) -> Tensor:
        """Each row times its expert's matrix."""
        return grouped_mm(x_RD, weight, counts_E)

    @staticmethod
    def plus(y_RF: Tensor, bias: Tensor | None, counts_E: Tensor) -> Tensor:
        """Its expert's bias added to each row, where there is one."""
        if bias is None:
            return y_RF
        # With the number of rows said, nobody has to wait for the counts' sum.
        own_RF = bias.repeat_interleave(counts_E.to(bias.device), 0, output_size=len(y_RF))
        return y_RF + own_RF.to(y_RF.dtype)


class MoE(nn.Module):
    """Gate and experts in the place of an MLP. x (..., D) -> (..., D)

    gate, experts:   any of the above; they know of each other only the number of experts
    shared:          a module that every token goes through beside its experts (DeepSeekMoE, Dai et al. 2401.06066)
    capacity_factor: drops what is above `capacity_of`; None drops nothing
    balancing, z:    weights of the two losses

    Capacity, losses and the choice of experts are about all tokens of a forward (`scope`).
    Of the last forward: `auxiliary_loss`, to be added to the model's own loss; `counts_E`, the tokens of each expert;
    and `num_dropped`, the pairs of token and expert that did not fit.
    """

    def __init__(
        self,
        gate: Any,
        experts: Any,
        shared: nn.Module | None = None,
        *,
        capacity_factor: float | None = None,
        balancing: float = 0.01,
        z: float = 0.0,
    ) -> None:
        super().__init__()
        if gate.num_experts != experts.num_experts:
            raise ValueError(
                f"the gate chooses among {gate.num_experts} experts, and there are {experts.num_experts}"
            )
        if capacity_factor is not None and hasattr(gate, "scope"):
            raise ValueError(
                f"where experts choose, each takes what its gate's k={gate.k} says, and nothing is dropped: "
                f"lower k, and leave out capacity_factor={capacity_factor}"
            )
        self.gate, self.experts, self.shared = gate, experts, shared
        self.scope: Any = OneForward()
        self.capacity_factor, self.balancing, self.z = capacity_factor, balancing, z
        self.auxiliary_loss: Tensor | None = None
        self.counts_E: Tensor | None = None
        self.num_dropped = 0

    def forward(self, x: Tensor) -> Tensor:
        x_ND = x.flatten(0, -2)
        routing = self.gate(x_ND)
        totals = self.scope.total(routing.totals())
        self.auxiliary_loss = self.losses(totals).to(torch.promote_types(x.dtype, torch.float32))
        E, wanted_E = self.gate.num_experts, totals[: self.gate.num_experts].detach().long()
        self.counts_E, self.num_dropped = wanted_E, 0
        if self.capacity_factor is not None:
            num_tokens, k = int(totals[-1]), self.gate.k
            capacity = capacity_of(num_tokens, E, k, self.capacity_factor)
            routing = with_capacity(routing, capacity, self.scope.before(routing, k))
            self.counts_E = wanted_E.clamp(max=capacity)
            self.num_dropped = int((wanted_E - self.counts_E).sum())
        routing = routing.by_expert()
        y_RD = self.experts(x_ND[routing.tokens_R], routing.counts_E)
        y_ND = torch.zeros_like(x_ND).index_add(
            0, routing.tokens_R, (y_RD * routing.weights_R.unsqueeze(-1)).to(x_ND.dtype)
        )
        if self.shared is not None:
            y_ND = y_ND + self.shared(x_ND)
        return y_ND.view(x.shape)

    def losses(self, totals: Tensor) -> Tensor:
        """The auxiliary loss of a `Routing.totals()`, before anything is dropped: it is the gate's wish that counts.

        z-loss: the mean of logsumexp(logits)^2, which keeps the gate's logits small (ST-MoE, 2202.08906, equation 5)
        """
        E, num_tokens = self.gate.num_experts, totals[-1].detach().clamp_min(1)
        counts_E, sums_E, z = totals[:E].detach(), totals[E : 2 * E], totals[2 * E]
        loss = self.balancing * balancing_loss(counts_E, sums_E / num_tokens)
        return loss + self.z * z / num_tokens if self.z else loss
