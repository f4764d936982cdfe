"""Positions on their way through the stages: a rank that has a part of each sequence says where its tokens are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dtcourse import launch
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.parameters.whole import full_gradients
from dtcourse.pipeline_parallel import Pipeline, layers_of, one_f_one_b, split
from dtcourse.verify import compare

KINDS = {
    "learned": TransformerConfig(vocab=11, d_model=8, n_layers=2, n_heads=2, max_length=9),
    "rotary": TransformerConfig(
        vocab=11, d_model=8, n_layers=2, n_heads=2, max_length=9, positions="rotary", norm="rms", mlp="swiglu"
    ),
}  # fmt: skip
TOKENS = torch.arange(24).reshape(4, 6) % 11
# Of a sequence cut in zig-zag order: neither from 0 nor neighbours. Each sample has its own.
PLACES = torch.tensor([[0, 1, 2, 6, 7, 8]] * 2 + [[8, 7, 6, 2, 1, 0]] * 2)


def loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def one_step(kind, recompute):
    model = Transformer(KINDS[kind]).double()
    schedule = one_f_one_b(2, 2)
    stages = split(
        layers_of(model), [range(2), range(2, 4)], schedule, torch.distributed.get_rank()
    )
    pipeline = Pipeline(stages, schedule, loss, recompute=recompute)
    pipeline.step((TOKENS, PLACES), TOKENS)
    return full_gradients(pipeline.module)


def alone(kind):
    """Sample by sample, since the model has one list of positions for all."""
    model = Transformer(KINDS[kind]).double()
    for tokens, places in zip(TOKENS, PLACES, strict=True):
        (loss(model(tokens[None], places), tokens[None]) / len(TOKENS)).backward()
    return {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_positions_go_from_stage_to_stage(kind, recompute):
    for found in launch(one_step, 2, kind, recompute):
        compare(found, alone(kind), 1e-12, "gradient", norm=2)


@pytest.mark.parametrize("kind", KINDS)
def test_other_positions_are_seen(kind):
    model = Transformer(KINDS[kind]).double()
    with torch.no_grad():
        layers = torch.nn.Sequential(*layers_of(model))
        assert not torch.allclose(layers(TOKENS), model(TOKENS, PLACES[0]))
