"""How many parameters a model has: counted, and by formula, and the two are equal to the last one.

The formula matters where the model does not fit: GPT-3's 175 billion can be counted without being built.
"""

from __future__ import annotations

from torch import nn

from dtcourse.models.transformer import TransformerConfig


def parameter_count(module: nn.Module, *, trainable: bool = False) -> int:
    """Number of parameters (elements, not tensors). A tied one counts once; trainable=True leaves out frozen ones."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trainable)


def transformer_parameters(config: TransformerConfig) -> int:
    """Number of parameters of Transformer(config), without building it.

    Per block with d = d_model, k = n_kv_heads d_head and f = d_ff: query and output 2 d^2, key and value 2 d k, the
    MLP 2 d f (SwiGLU 3 d f; experts that each, and d for the gate), two norms 2 d, and biases. With k = d and f = 4 d
    the matrices are the well-known 12 d^2.
    """
    d, f, kv, bias = config.d_model, config.ff, config.kv_heads * config.d_head, config.bias
    norm = d + d * (bias and config.norm == "layer")
    attention = 2 * d * d + 2 * d * kv + (2 * d + 2 * kv) * bias
    widening = 1 if config.mlp == "gelu" else 2
    mlp = (widening + 1) * d * f + (d + widening * f) * bias
    if config.experts:
        E, shared = config.experts, config.shared_experts
        gate_and_experts = d * E + E * mlp
        # One MLP of several times the width has one bias for its output.
        mlp = gate_and_experts + shared * mlp - max(shared - 1, 0) * d * bias
    block = attention + mlp + 2 * norm
    positions = config.max_length if config.positions == "learned" else 0
    embeddings = (config.vocab + positions) * d
    output = 0 if config.tied else config.vocab * d
    return embeddings + config.n_layers * block + norm + output
