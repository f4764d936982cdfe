"""MFU and HFU are the closed form, on the virtual clock to the last digit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dtcourse import launch
from dtcourse.emulation import EmulatedDevice
from dtcourse.models import flops
from dtcourse.models.transformer import Transformer, TransformerConfig
from dtcourse.profiling.throughput import Throughput, throughput

CONFIG = TransformerConfig(n_layers=2, d_model=64)
B, S, SPEED = 2, 32, 1e9


def trained():
    """A Transformer, and two layers behind a checkpoint, on cards of a 1e9 operations per second."""
    model, tokens = Transformer(CONFIG), torch.randint(0, CONFIG.vocab, (B, S))
    block = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
    x = torch.rand(8, 64, requires_grad=True)
    return (
        throughput(
            lambda: model.loss(tokens, tokens).backward(),
            samples=B, tokens=B * S, peak=2 * SPEED, steps=2, warm_up=1,
        ),
        throughput(
            lambda: checkpoint(block, x, use_reentrant=True).sum().backward(),
            samples=8, peak=SPEED, steps=1, warm_up=1,
        ),
    )  # fmt: skip


def test_on_an_emulated_card_the_shares_are_what_was_put_in():
    """Nothing but products takes time, so cards of half the peak reach half of it, and repeating a quarter shows."""
    both = launch(trained, 2, devices=EmulatedDevice(flops=SPEED))
    whole, repeated = both[0]
    assert both[1] == both[0]
    needed = 2 * B * S * flops.per_token(CONFIG, S)
    assert whole.model_flops == whole.flops == needed
    assert whole.seconds == pytest.approx(needed / 2 / SPEED, rel=1e-12)
    assert whole.mfu == whole.hfu == pytest.approx(0.5, rel=1e-12)
    assert whole.tokens_per_second == pytest.approx(2 * B * S / whole.seconds)
    assert (repeated.mfu, repeated.hfu) == pytest.approx((0.75, 1.0), rel=1e-12)


def test_a_cards_name_is_its_published_peak():
    layer, x = nn.Linear(8, 8, bias=False), torch.ones(4, 8)
    alone = throughput(lambda: layer(x), samples=4, peak="A100 SXM", steps=1, warm_up=1)
    assert (alone.ranks, alone.flops, alone.peak) == (1, 2 * 4 * 8 * 8, 312e12)
    assert alone.mfu == alone.flops / alone.seconds / 312e12
    with pytest.raises(ValueError, match="no peak rate is published here for 'V100'"):
        throughput(lambda: layer(x), samples=4, peak="V100")


def test_said_as_text():
    one = Throughput(0.5, 8, 8192, model_flops=10**14, flops=12 * 10**13, ranks=2, peak=312e12)
    assert str(one) == (
        "16.0 samples/s, 16,384 tokens/s, 100 TFLOP/s per rank, MFU 32.1%, HFU 38.5% on 2 ranks"
    )
    assert str(Throughput(1, 3, 0, 10**12, 10**12)) == "3.0 samples/s, 1 TFLOP/s per rank on 1 rank"


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"seconds": 0.0}, "more than 0 seconds; got 0.0"),
        ({"seconds": float("nan")}, "more than 0 seconds; got nan"),
        ({"samples": -1}, "0 or more, ranks 1 or more; got -1"),
        ({"model_flops": 3}, "model_flops=3 and flops=2"),
        ({"peak": -1.0}, "above 0; got -1.0"),
    ],
)
def test_what_cannot_be_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        Throughput(**({"seconds": 1.0, "samples": 1, "tokens": 0, "model_flops": 2, "flops": 2} | wrong))  # fmt: skip


def test_a_utilisation_needs_a_peak_and_a_time_needs_steps():
    with pytest.raises(ValueError, match='peak="H100 SXM"'):
        _ = Throughput(1.0, 1, 0, 2, 2).mfu
    with pytest.raises(ValueError, match="steps=0 and warm_up=2"):
        throughput(lambda: None, samples=1, steps=0)
