"""Models and layouts that are both run and traced. The functions here are what ranks import."""

from __future__ import annotations

from functools import partial

import torch

from dtcourse.hybrid import HybridConfig
from dtcourse.hybrid.virtual import second_step
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.pipeline_parallel import interleaved_1f1b

PLAIN = TransformerConfig(
    vocab=32, n_layers=2, d_model=16, n_heads=4, max_length=8, tied=False, bias=False
)
TIED = TransformerConfig(vocab=31, n_layers=2, d_model=16, n_heads=4, max_length=8)
LLAMA = TransformerConfig(
    vocab=32, n_layers=2, d_model=16, n_heads=4, n_kv_heads=2, d_ff=24, max_length=8, tied=False, bias=False,
    positions="rotary", norm="rms", mlp="swiglu",
)  # fmt: skip
MIXTURE = TransformerConfig(
    vocab=32, n_layers=2, d_model=16, n_heads=4, max_length=8, d_ff=8, experts=4, balancing=0.1, tied=False,
    shared_experts=1,
)  # fmt: skip
MODELS = {"plain": PLAIN, "tied": TIED, "llama": LLAMA, "mixture": MIXTURE}
SAMPLES, MICRO_BATCHES, MAX_NORM = 4, 2, 0.3
adamw = partial(torch.optim.AdamW, lr=1e-3)


def build(shape: TransformerConfig) -> Transformer:
    """In doubles: bytes of all kinds are then 8 each."""
    return Transformer(shape).double()


def job(name: str, config: HybridConfig) -> tuple:
    """The arguments of second_step and trace_stages."""
    shape = MODELS[name]
    return partial(build, shape), config, SAMPLES, shape.max_length, adamw, MAX_NORM


def two_each(ranks: int, micro_batches: int):
    """A schedule of two stages on each rank."""
    return interleaved_1f1b(ranks, micro_batches, 2)


def with_counts(*arguments):
    """second_step on a real rank, and the rows that its gates sent to each expert, dispatch by dispatch."""
    from dtcourse.expert_parallel import exchange, layer

    seen, dispatch = [], exchange.dispatch

    def noted(rows_RD, counts_E, groups):
        seen.append(counts_E.tolist())
        return dispatch(rows_RD, counts_E, groups)

    layer.dispatch = noted
    try:
        return second_step(*arguments), seen
    finally:
        layer.dispatch = dispatch
