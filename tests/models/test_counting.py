"""Counts by formula equal what is counted on the real model, to the last parameter and the last operation."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from dtcourse.models import (
    MLP,
    PUBLISHED,
    Transformer,
    TransformerConfig,
    flops,
    parameter_count,
    transformer_parameters,
)


@st.composite
def configs(draw) -> TransformerConfig:
    kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    heads = kv_heads * group
    positions = draw(st.sampled_from(["learned", "rotary"]))
    per_head = draw(st.integers(1, 6)) if positions == "learned" else 2 * draw(st.integers(1, 3))
    return TransformerConfig(
        vocab=draw(st.integers(1, 40)),
        d_model=heads * per_head,
        n_layers=draw(st.integers(1, 3)),
        n_heads=heads,
        n_kv_heads=draw(st.sampled_from([kv_heads, None])),
        d_ff=draw(st.one_of(st.none(), st.integers(1, 30))),
        max_length=draw(st.integers(1, 20)),
        tied=draw(st.booleans()),
        bias=draw(st.booleans()),
        positions=positions,
        norm=draw(st.sampled_from(["layer", "rms"])),
        mlp=draw(st.sampled_from(["gelu", "swiglu"])),
        experts=(experts := draw(st.integers(0, 4))),
        top_k=draw(st.integers(1, max(experts, 1))),
        shared_experts=draw(st.integers(0, 2)) if experts else 0,
    )


@settings(max_examples=40, deadline=None)
@given(configs())
def test_transformer_parameters_is_exact(config) -> None:
    with torch.device("meta"):
        assert transformer_parameters(config) == parameter_count(Transformer(config))


@settings(max_examples=15, deadline=None)
@given(configs(), st.integers(1, 3), st.data())
def test_flops_are_exact(config, batch, data) -> None:
    length = data.draw(st.integers(1, config.max_length))
    model = Transformer(config)
    tokens = torch.zeros(batch, length, dtype=torch.long)
    with FlopCounterMode(display=False) as forward:
        loss = model.loss(tokens, tokens)
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    n = batch * length
    assert forward.get_total_flops() == n * flops.per_token(config, length, backward=False)
    total = forward.get_total_flops() + backward.get_total_flops()
    assert total == n * flops.per_token(config, length)


def test_published_sizes() -> None:
    """What the papers and the released checkpoints say."""
    count = {name: transformer_parameters(config) for name, config in PUBLISHED.items()}
    assert count["GPT-2 small"] == 124_439_808  # the released checkpoint's own
    assert count["GPT-2 XL"] == 1_557_611_200
    assert round(count["GPT-3 2.7B"] / 1e9, 1) == 2.7
    assert round(count["GPT-3 6.7B"] / 1e9, 1) == 6.7
    assert round(count["GPT-3 175B"] / 1e9) == 175


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_shapes_are_counted_on_the_real_modules(name) -> None:
    with torch.device("meta"):  # shapes without memory
        assert transformer_parameters(PUBLISHED[name]) == parameter_count(
            Transformer(PUBLISHED[name])
        )


def test_rules_of_thumb_against_the_exact_count() -> None:
    config = PUBLISHED["GPT-3 175B"]
    N = transformer_parameters(config)
    exact = flops.per_token(config, 2048)
    # The attention term is 3% at this size; 6 N ignores it.
    assert flops.six_n(N) < exact < 1.04 * flops.six_n(N)
    assert abs(flops.palm_per_token(N, config, 2048) / exact - 1) < 0.001
    assert flops.kaplan_per_token(config, 2048) < exact
    # 3.14e23: Brown et al. 2005.14165, table D.1, for 300 billion tokens.
    assert abs(flops.training_run(N, 300_000_000_000) / 3.14e23 - 1) < 0.01


def test_frozen_and_tied_parameters() -> None:
    model = MLP((4, 3, 2))
    assert parameter_count(model) == 4 * 3 + 3 + 3 * 2 + 2
    model[1].weight.requires_grad_(False)
    assert parameter_count(model, trainable=True) == 3 + 3 * 2 + 2


def test_length_out_of_range() -> None:
    with pytest.raises(ValueError, match="max_length=256; got 300"):
        flops.per_token(TransformerConfig(), 300)
