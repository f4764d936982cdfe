"""Models and clusters that the planner's tests share."""

from __future__ import annotations

import pytest

from dtcourse.planner import Hardware, Model
from dtcourse.planner.ranges import likely


def known(name, **changes):
    """A published card, the likely number in place of each range, and collectives as the simulator has them."""
    return likely((Hardware.of(name, **changes),))[0]


@pytest.fixture
def gpt():
    """GPT-3's 6.7B shape."""
    return Model(layers=32, hidden=4096, heads=32, vocabulary=50304)


@pytest.fixture
def llama():
    """Llama 3.1 8B."""
    return Model(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=True, tied=False, biases=False, norm="rms",
        positions="rotary", vocabulary=128256, sequence=8192,
    )  # fmt: skip


@pytest.fixture
def mixtral():
    """Mixtral 8x7B."""
    return Model(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, gated=True, tied=False, biases=False, norm="rms",
        positions="rotary", vocabulary=32000, sequence=4096, experts=8, top_k=2,
    )  # fmt: skip


@pytest.fixture
def a100():
    return known("A100 SXM")
