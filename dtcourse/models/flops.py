"""Floating-point operations of training a Transformer: the exact count of its matrix products, and the rules of thumb.

A matrix product of (m, k) with (k, n) is 2 m k n operations: a multiplication and an addition each. The forward pass
therefore costs 2 operations per weight and token; the backward pass, with one product for the gradient of the input
and one for the gradient of the weight, twice that: 6 N in all (Kaplan et al. 2001.08361, section 2.1). Attention adds
a term that grows with the length (PaLM, Chowdhery et al. 2204.02311, appendix B).
Norms, softmax, GELU and the loss are left out, as in both papers.
"""

from __future__ import annotations

from dtcourse.models.transformer import TransformerConfig


def matmul_parameters(config: TransformerConfig) -> int:
    """Weights that each token is multiplied with: all matrices but the two embedding tables, of experts its top_k.

    The output layer is included, tied or not: looking a row up costs no operations, multiplying with it does.
    """
    d, f, kv = config.d_model, config.ff, config.kv_heads * config.d_head
    mlp = (2 if config.mlp == "gelu" else 3) * d * f
    if config.experts:  # and the gate, which scores all of them
        mlp = (config.top_k + config.shared_experts) * mlp + d * config.experts
    return config.n_layers * (2 * d * d + 2 * d * kv + mlp) + config.vocab * d


def per_token(config: TransformerConfig, length: int, *, backward: bool = True) -> int:
    """Exact operations in matrix products for one token of a sequence of `length`, forward and (by default) backward.

    2 operations per weight, and 4 length d_model per layer for q k^T and scores v; three times that with the backward.
    The causal mask saves nothing in CausalAttention, which computes the masked scores too. The same total holds for
    grouped-query attention, which shares keys and values but computes every query head's scores.
    Recomputation of activations is not counted: this is the "model FLOPs" of MFU.
    """
    if not 1 <= length <= config.max_length:
        raise ValueError(f"length is 1 to max_length={config.max_length}; got {length}")
    forward = 2 * matmul_parameters(config) + 4 * config.n_layers * length * config.d_model
    return 3 * forward if backward else forward


def six_n(parameters: int) -> int:
    """The rule of thumb: 6 operations per parameter and token, forward and backward together."""
    return 6 * parameters


def kaplan_per_token(config: TransformerConfig, length: int) -> int:
    """Kaplan et al. 2001.08361, section 2.1, forward and backward: 3 (2 N + 2 n_layers length d_model).

    N there leaves out both embeddings and the output layer, and the attention term is half of `per_token`'s
    (table 1 counts one of the two products; it is also what a kernel that skips masked scores computes).
    """
    N = matmul_parameters(config) - config.vocab * config.d_model
    return 3 * (2 * N + 2 * config.n_layers * length * config.d_model)


def palm_per_token(parameters: int, config: TransformerConfig, length: int) -> int:
    """PaLM 2204.02311, appendix B, forward and backward: 6 N + 12 n_layers n_heads d_head length."""
    return 6 * parameters + 12 * config.n_layers * config.n_heads * config.d_head * length


def training_run(parameters: int, tokens: int) -> int:
    """6 N D: operations of a whole training run of `parameters` on `tokens` (Kaplan et al. 2001.08361)."""
    return 6 * parameters * tokens
