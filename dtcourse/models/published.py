"""Shapes of published models, for computing what they need; nobody has to build them.

Only decoders of the family that Transformer is (learned positions, biases, tied embeddings, d_ff = 4 d_model), so that
`transformer_parameters` is exact for them.
GPT-2: Radford et al. 2019, table 2, with the heads of the released models. GPT-3: Brown et al. 2005.14165, table 2.1
(the rows whose numbers agree with each other: heads times head size is d_model).
"""

from __future__ import annotations

from dtcourse.models.transformer import TransformerConfig


def _gpt2(n_layers: int, d_model: int, n_heads: int) -> TransformerConfig:
    return TransformerConfig(50257, d_model, n_layers, n_heads, max_length=1024)


def _gpt3(n_layers: int, d_model: int, n_heads: int) -> TransformerConfig:
    return TransformerConfig(50257, d_model, n_layers, n_heads, max_length=2048)


PUBLISHED: dict[str, TransformerConfig] = {
    "GPT-2 small": _gpt2(12, 768, 12),
    "GPT-2 medium": _gpt2(24, 1024, 16),
    "GPT-2 large": _gpt2(36, 1280, 20),
    "GPT-2 XL": _gpt2(48, 1600, 25),
    "GPT-3 2.7B": _gpt3(32, 2560, 32),
    "GPT-3 6.7B": _gpt3(32, 4096, 32),
    "GPT-3 175B": _gpt3(96, 12288, 96),
}
"""Name to shape, smallest first."""
