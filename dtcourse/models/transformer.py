"""A GPT-style decoder: the model that every kind of parallelism in this course is applied to.

GPT-2's shape (Radford et al. 2019): learned positions, LayerNorm before each part, GELU, one causal mask. Options are
grouped-query attention (Ainslie et al. 2305.13245), untied embeddings, and what Llama changed (Touvron et al.
2302.13971): rotary positions (rotary.py), RMSNorm (Zhang and Sennrich 1910.07467), SwiGLU (Shazeer 2002.05202); and
experts (moe.py). Its parts have names that a parallel plan can speak of: `blocks.0.attention.query`,
`blocks.0.mlp.down`.

Shape suffixes: B batch, S sequence, D d_model, F d_ff, H heads, K key-value heads, E elements of one head,
V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import nn

from dtcourse.lookup import check_length, check_positions, look_up
from dtcourse.models.gates import TopKGate
from dtcourse.models.moe import Experts, MoE
from dtcourse.models.rotary import Rotary
from dtcourse.models.seeding import seeded

KINDS = {"positions": ("learned", "rotary"), "norm": ("layer", "rms"), "mlp": ("gelu", "swiglu")}


@dataclass(frozen=True)
class TransformerConfig:
    """The shape of a Transformer.

    vocab: tokens in the vocabulary
    d_model, n_layers, n_heads: width, blocks, attention heads; n_heads divides d_model
    n_kv_heads: heads of keys and values, each shared by n_heads / n_kv_heads query heads; None means n_heads
    d_ff: width of the hidden layer of each block's MLP; None means 4 d_model, and for SwiGLU, which has three matrices
        where there were two, 8/3 d_model, rounded up to a multiple of 8
    max_length: longest sequence, the rows of the table of learned positions
    tied: the output layer uses the token embedding's own weight
    bias: linear layers and norms have biases (the output layer and RMSNorm never have)
    positions: "learned", or "rotary" with its base, which needs heads of an even size
    norm: "layer" or "rms"
    mlp: "gelu" or "swiglu"
    experts: MLPs of width d_ff in each block, of which a token goes through top_k and no token is dropped; 0: one, for
        all tokens
    shared_experts: that many times d_ff beside them for every token
    balancing: the weight of the gates' loss
    """

    vocab: int = 256
    d_model: int = 128
    n_layers: int = 4
    n_heads: int = 4
    n_kv_heads: int | None = None
    d_ff: int | None = None
    max_length: int = 256
    tied: bool = True
    bias: bool = True
    dropout: float = 0.0
    positions: str = "learned"
    norm: str = "layer"
    mlp: str = "gelu"
    rotary_base: float = 10_000.0
    experts: int = 0
    top_k: int = 2
    shared_experts: int = 0
    balancing: float = 0.01

    def __post_init__(self) -> None:
        for name in ("vocab", "d_model", "n_layers", "n_heads", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is at least 1; got {getattr(self, name)}")
        if self.d_model % self.n_heads:
            raise ValueError(
                f"d_model={self.d_model} is not a multiple of n_heads={self.n_heads}: heads share it equally"
            )
        if self.kv_heads < 1 or self.n_heads % self.kv_heads:
            raise ValueError(
                f"n_heads={self.n_heads} is not a multiple of n_kv_heads={self.kv_heads}: "
                "each key-value head serves an equal group of query heads"
            )
        if self.ff < 1:
            raise ValueError(f"d_ff is at least 1; got {self.ff}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout is a probability below 1; got {self.dropout}")
        for name, known in KINDS.items():
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} is {known[0]!r} or {known[1]!r}; got {getattr(self, name)!r}"
                )
        if self.experts < 0 or self.shared_experts < 0:
            raise ValueError(
                f"experts and shared_experts are 0 or more; got {self.experts} and {self.shared_experts}"
            )
        if self.experts and not 1 <= self.top_k <= self.experts:
            raise ValueError(
                f"a token goes through top_k = 1 to experts = {self.experts} of them; got top_k={self.top_k}"
            )
        if self.shared_experts and not self.experts:
            raise ValueError(
                f"shared_experts={self.shared_experts} stand beside others, and experts is 0"
            )
        if self.positions == "rotary" and self.d_head % 2:
            raise ValueError(
                f"rotary positions turn pairs of numbers, so a head has an even size; d_model={self.d_model} with "
                f"n_heads={self.n_heads} gives {self.d_head}"
            )

    @property
    def d_head(self) -> int:
        return self.d_model // self.n_heads

    @property
    def kv_heads(self) -> int:
        return self.n_heads if self.n_kv_heads is None else self.n_kv_heads

    @property
    def ff(self) -> int:
        if self.d_ff is not None:
            return self.d_ff
        return 4 * self.d_model if self.mlp == "gelu" else 8 * math.ceil(self.d_model / 3)


class CausalAttention(nn.Module):
    """softmax(q k^T / sqrt(E) + mask) v, written out: it holds all S x S scores of every head.

    q_BHSE, k_BKSE, v_BKSE -> (B, H, S, E). It has no parameters, so it can be replaced in a built model
    (`block.attention.core = FusedCausalAttention()`), which is how ring attention is put in.
    """

    def forward(
        self, q_BHSE: torch.Tensor, k_BKSE: torch.Tensor, v_BKSE: torch.Tensor
    ) -> torch.Tensor:
        group = q_BHSE.shape[1] // k_BKSE.shape[1]
        if group > 1:  # neighbouring query heads share one key-value head
            k_BKSE = k_BKSE.repeat_interleave(group, dim=1)
            v_BKSE = v_BKSE.repeat_interleave(group, dim=1)
        scores_BHSS = q_BHSE @ k_BKSE.transpose(-2, -1) / math.sqrt(q_BHSE.shape[-1])
        S = scores_BHSS.shape[-1]
        future_SS = torch.ones(S, S, dtype=torch.bool, device=q_BHSE.device).triu(1)
        return scores_BHSS.masked_fill(future_SS, -torch.inf).softmax(-1) @ v_BKSE


class FusedCausalAttention(nn.Module):
    """The same numbers by PyTorch's fused kernel, which never holds all the scores. Shapes as CausalAttention's."""

    def forward(
        self, q_BHSE: torch.Tensor, k_BKSE: torch.Tensor, v_BKSE: torch.Tensor
    ) -> torch.Tensor:
        return F.scaled_dot_product_attention(
            q_BHSE, k_BKSE, v_BKSE, is_causal=True, enable_gqa=q_BHSE.shape[1] != k_BKSE.shape[1]
        )


class Attention(nn.Module):
    """Project to queries, keys and values, attend in each head, project back. x_BSD -> (B, S, D)

    positions_S: as Transformer's; only rotary attention looks at them
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        D, kv = config.d_model, config.kv_heads * config.d_head
        self.d_head = config.d_head
        self.query = nn.Linear(D, D, bias=config.bias)
        self.key = nn.Linear(D, kv, bias=config.bias)
        self.value = nn.Linear(D, kv, bias=config.bias)
        rotary = config.positions == "rotary"
        self.rotary = Rotary(config.d_head, config.rotary_base) if rotary else None
        self.core: nn.Module = CausalAttention()
        self.output = nn.Linear(D, D, bias=config.bias)

    def forward(self, x_BSD: torch.Tensor, positions_S: torch.Tensor | None = None) -> torch.Tensor:
        q_BHSE, k_BKSE, v_BKSE = (
            self._heads(layer(x_BSD)) for layer in (self.query, self.key, self.value)
        )
        if self.rotary is not None:
            q_BHSE, k_BKSE = self.rotary(q_BHSE, positions_S), self.rotary(k_BKSE, positions_S)
        return self.output(self.core(q_BHSE, k_BKSE, v_BKSE).transpose(1, 2).flatten(2))

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        # The number of heads is read off the tensor: under tensor parallelism a rank holds only some of them.
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)


class FeedForward(nn.Module):
    """Widen, GELU, narrow. x_BSD -> (B, S, D)"""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.d_model, config.ff, bias=config.bias)
        self.down = nn.Linear(config.ff, config.d_model, bias=config.bias)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x_BSD)))


class GatedFeedForward(nn.Module):
    """SwiGLU: widen twice, one half opens and closes the other, narrow. x_BSD -> (B, S, D)"""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.d_model, config.ff, bias=config.bias)
        self.up = nn.Linear(config.d_model, config.ff, bias=config.bias)
        self.down = nn.Linear(config.ff, config.d_model, bias=config.bias)

    def forward(self, x_BSD: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x_BSD)) * self.up(x_BSD))


def norm_of(config: TransformerConfig) -> nn.Module:
    """The norm before each part and before the output layer."""
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=1e-5)
    return nn.LayerNorm(config.d_model, bias=config.bias)


def mlp_of(config: TransformerConfig) -> nn.Module:
    """One MLP, or a gate and experts."""
    if not config.experts:
        return FeedForward(config) if config.mlp == "gelu" else GatedFeedForward(config)
    D, E, shared = config.d_model, config.experts, None
    if config.shared_experts:
        width = config.shared_experts * config.ff
        shared = mlp_of(replace(config, d_ff=width, experts=0, shared_experts=0))
    experts = Experts(E, D, config.ff, kind=config.mlp, bias=config.bias)
    return MoE(TopKGate(D, E, config.top_k), experts, shared, balancing=config.balancing)


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)). x_BSD -> (B, S, D)"""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm_1 = norm_of(config)
        self.attention = Attention(config)
        self.norm_2 = norm_of(config)
        self.mlp = mlp_of(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x_BSD: torch.Tensor, positions_S: torch.Tensor | None = None) -> torch.Tensor:
        x_BSD = x_BSD + self.dropout(self.attention(self.norm_1(x_BSD), positions_S))
        return x_BSD + self.dropout(self.mlp(self.norm_2(x_BSD)))


class Transformer(nn.Module):
    """tokens_BS (integers below vocab) -> logits (B, S, V)

    Weights are GPT-2's: normal with standard deviation 0.02, the two layers of each block that write into the
    residual stream scaled by 1/sqrt(2 n_layers). The same seed and config give the same weights everywhere.
    """

    def __init__(self, config: TransformerConfig | None = None, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config = config or TransformerConfig()
        with seeded(seed):
            self.token_embedding = nn.Embedding(config.vocab, config.d_model)
            self.position_embedding = None
            if config.positions == "learned":
                self.position_embedding = nn.Embedding(config.max_length, config.d_model)
            self.dropout = nn.Dropout(config.dropout)
            self.blocks = nn.ModuleList(Block(config) for _ in range(config.n_layers))
            self.norm = norm_of(config)
            self.output = nn.Linear(config.d_model, config.vocab, bias=False)
            if config.tied:
                self.output.weight = self.token_embedding.weight
            self._initialise()

    def forward(
        self, tokens_BS: torch.Tensor, positions_S: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Logits of the next token at every place.

        positions_S: each token's place in the whole sequence; default 0, 1, 2, ... (a rank that holds only part of a
        long sequence gives its own); or (B, S), by sample. What vocab and max_length have no place for is a ValueError
        """
        S, longest = tokens_BS.shape[-1], self.config.max_length
        check_length(S, longest, self.blocks[0])
        x_BSD = look_up(self.token_embedding, tokens_BS, self.config.vocab, "tokens", "vocab")
        if positions_S is None:
            positions_S = torch.arange(S, device=tokens_BS.device)
        elif self.position_embedding is None:
            check_positions(positions_S, longest)
        if (learned := self.position_embedding) is not None:
            x_BSD = x_BSD + look_up(learned, positions_S, longest, "positions", "max_length")
        x_BSD = self.dropout(x_BSD)
        # Rotary attention turns by the positions in each block; with learned ones a block is a function of x alone.
        rotary = () if self.position_embedding is not None else (positions_S,)
        for block in self.blocks:
            x_BSD = block(x_BSD, *rotary)
        return self.output(self.norm(x_BSD))

    def loss(self, tokens_BS: torch.Tensor, targets_BS: torch.Tensor) -> torch.Tensor:
        """Mean cross-entropy per token, in nats; with experts, and their gates' losses.

        targets_BS: the token that follows each of tokens_BS
        """
        loss = F.cross_entropy(self(tokens_BS).flatten(0, -2), targets_BS.flatten())
        for part in self.modules():  # wherever it is: a block may have been wrapped
            if isinstance(part, MoE):
                assert part.auxiliary_loss is not None, "its forward has just run"
                loss = loss + part.auxiliary_loss
        return loss

    def _initialise(self) -> None:
        writes_residual = (
            "attention.output.weight",
            "mlp.down.weight",
            "mlp.shared.down.weight",
            "mlp.experts.down",
        )
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
                continue
            if parameter.dim() == 1:  # the scale of a norm stays 1
                continue
            std = 0.02
            if name.endswith(writes_residual):
                std /= math.sqrt(2 * self.config.n_layers)
            nn.init.normal_(parameter, std=std)
