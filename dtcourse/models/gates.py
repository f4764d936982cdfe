"""Gates: which tokens go to which experts, and with what weight. Each makes a Routing: pairs of token and expert.

    top-k            each token takes the k experts with the largest softmax (Shazeer et al. 1701.06538), k = 1: Switch
    (2101.03961)
    noisy top-k      by logits with noise while training (the same paper)
    bias-balanced    a bias for each expert keeps them equally busy, without a loss (Wang et al. 2408.15664)
    expert choice    each expert takes the tokens with the largest softmax (Zhou et al. 2202.09368)

Shape suffixes: N tokens, D d_model, E experts, C tokens of each expert, R routes: pairs of a token and an expert.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Routing:
    """Who goes where.

    tokens_R, experts_R: the pairs, in order of preference: all first choices before all second ones, tokens in order
    choices_R:           0 where it is the token's first choice, 1 for its second, ...; 0 where experts choose
    weights_R:           what the expert's output is multiplied with; gradients reach the gate through it
    logits_NE, scores_NE: the gate's, before and after softmax (or sigmoid), for the losses
    """

    tokens_R: Tensor
    experts_R: Tensor
    choices_R: Tensor
    weights_R: Tensor
    logits_NE: Tensor
    scores_NE: Tensor

    @property
    def counts_E(self) -> Tensor:
        """Tokens of each expert."""
        # torch.bincount would wait, on a GPU, to see how many there are.
        counts_E = self.experts_R.new_zeros(self.logits_NE.shape[1])
        return counts_E.index_add(0, self.experts_R, torch.ones_like(self.experts_R))

    def kept(self, which_R: Tensor) -> Routing:
        """The routing with the pairs that a mask or a list of indices picks."""
        return replace(
            self,
            tokens_R=self.tokens_R[which_R],
            experts_R=self.experts_R[which_R],
            choices_R=self.choices_R[which_R],
            weights_R=self.weights_R[which_R],
        )

    def totals(self) -> Tensor:
        """All that the losses need to know, as sums over tokens, which can be added:
        (2 E + 2) numbers in double precision.

        The tokens of each expert; the sums of scores_NE, and of logsumexp(logits)^2; the number of tokens.
        """
        scores_NE, z_N = self.scores_NE.double(), self.logits_NE.double().logsumexp(-1).square()
        num_tokens = z_N.new_tensor([len(z_N)])
        return torch.cat([self.counts_E.to(z_N), scores_NE.sum(0), z_N.sum().view(1), num_tokens])

    def by_expert(self) -> Routing:
        """The same pairs, those of expert 0 first, then of expert 1, each in the order that they had."""
        return self.kept(self.experts_R.argsort(stable=True))


class OneForward:
    """The tokens among which experts choose, of which they take so many, and over which losses are meant:
    one forward's.

    Where the batch is spread over ranks, another object with these methods can speak for all of it
    (dtcourse.expert_parallel.scope).
    """

    def total(self, x: Tensor) -> Tensor:
        """The sum over all parts of the batch. Gradients go back to each."""
        return x

    def before(self, routing: Routing, k: int) -> Tensor:
        """(R,): how many pairs of *other* parts come before each pair at its expert, in the order of preference."""
        return torch.zeros_like(routing.experts_R)

    def chosen(self, scores_NE: Tensor, k: float) -> tuple[Tensor, Tensor]:
        """Each expert takes the k N / E tokens with its largest scores: those of this part, tokens_R and experts_R."""
        N, E = scores_NE.shape
        tokens_EC = scores_NE.T.topk(min(N, math.ceil(k * N / E)), dim=-1).indices
        experts_E = torch.arange(E, device=scores_NE.device)
        return tokens_EC.flatten(), experts_E.repeat_interleave(tokens_EC.shape[1])


class TopKGate(nn.Module):
    """Each token takes the k experts with the largest softmax. x_ND -> Routing

    renormalise: a token's k weights add up to 1; False, with k = 1, is Switch: the weight must be the probability
                 itself there, or the gate would have no gradient
    noise:       the experts are chosen by noisy logits while training: standard normal noise times softplus of a second
                 linear map, which starts at zero (Shazeer et al. 1701.06538, equation 4). The weights are of the noisy
                 ones, too
    """

    def __init__(
        self,
        d_model: int,
        num_experts: int,
        k: int = 2,
        *,
        renormalise: bool = True,
        noise: bool = False,
    ) -> None:
        super().__init__()
        if not 1 <= k <= num_experts:
            raise ValueError(
                f"a token visits k = 1 to {num_experts} of {num_experts} experts; got k={k}"
            )
        self.num_experts, self.k, self.renormalise = num_experts, k, renormalise and k > 1
        self.linear = nn.Linear(d_model, num_experts, bias=False)
        self.noise = nn.Linear(d_model, num_experts, bias=False) if noise else None
        if self.noise is not None:
            nn.init.zeros_(self.noise.weight)

    def forward(self, x_ND: Tensor) -> Routing:
        logits_NE = self.linear(x_ND)
        if self.noise is not None and self.training:
            logits_NE = logits_NE + torch.randn_like(logits_NE) * F.softplus(self.noise(x_ND))
        scores_NE = logits_NE.softmax(-1)
        return self.route(logits_NE, scores_NE, scores_NE)

    def route(self, logits_NE: Tensor, scores_NE: Tensor, chosen_by_NE: Tensor) -> Routing:
        """Each token's k largest of `chosen_by`, weighted by their scores."""
        experts_Nk = chosen_by_NE.topk(self.k, dim=-1).indices
        weights_Nk = scores_NE.gather(-1, experts_Nk)
        if self.renormalise:
            weights_Nk = weights_Nk / weights_Nk.sum(-1, keepdim=True)
        tokens_N = torch.arange(len(logits_NE), device=logits_NE.device)
        choices_k = torch.arange(self.k, device=logits_NE.device)
        # Transposed: all first choices come before all second ones.
        return Routing(
            tokens_N.repeat(self.k),
            experts_Nk.T.flatten(),
            choices_k.repeat_interleave(len(tokens_N)),
            weights_Nk.T.flatten(),
            logits_NE,
            scores_NE,
        )


class BiasBalancedGate(TopKGate):
    """Balance without a loss: a bias for each expert says who is chosen, but not with what weight (2408.15664).

    Call `update(counts_E)` after each step: experts with more tokens than the mean lose `rate` of their bias, those
    with fewer gain it. Scores are sigmoids, as in the paper. The bias is a buffer: no gradient moves it.
    """

    bias_E: Tensor

    def __init__(self, d_model: int, num_experts: int, k: int = 2, *, rate: float = 1e-3) -> None:
        super().__init__(d_model, num_experts, k)
        self.rate = rate
        self.register_buffer("bias_E", torch.zeros(num_experts))

    def forward(self, x_ND: Tensor) -> Routing:
        logits_NE = self.linear(x_ND)
        scores_NE = logits_NE.sigmoid()
        return self.route(logits_NE, scores_NE, scores_NE.detach() + self.bias_E)

    @torch.no_grad()
    def update(self, counts_E: Tensor) -> None:
        """counts_E: the tokens that each expert had in the step."""
        counts = counts_E.to(self.bias_E)
        self.bias_E += self.rate * (counts.mean() - counts).sign()


class ExpertChoiceGate(nn.Module):
    """Each expert takes the tokens with the largest softmax, all equally many: balanced by construction (2202.09368).

    k: how many experts a token has on average; one may have none, another all. What a token gets depends on the
    others beside it, later ones too, so this is for training and encoders, not for decoding token by token.
    """

    def __init__(self, d_model: int, num_experts: int, k: float = 2.0) -> None:
        super().__init__()
        if not 0 < k <= num_experts:
            raise ValueError(f"a token has above 0 to {num_experts} experts on average; got k={k}")
        self.num_experts, self.k = num_experts, k
        self.linear = nn.Linear(d_model, num_experts, bias=False)
        self.scope: Any = OneForward()

    def forward(self, x_ND: Tensor) -> Routing:
        logits_NE = self.linear(x_ND)
        scores_NE = logits_NE.softmax(-1)
        tokens_R, experts_R = self.scope.chosen(scores_NE.detach(), self.k)
        weights_R = scores_NE[tokens_R, experts_R]
        choices_R = torch.zeros_like(tokens_R)
        return Routing(tokens_R, experts_R, choices_R, weights_R, logits_NE, scores_NE)
