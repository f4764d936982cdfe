"""Tokens, positions and lengths that a decoder has no place for, in the whole model and in its first layer alone."""

from __future__ import annotations

import pytest
import torch

from dtcourse import emulation, launch, streams
from dtcourse.emulation import EmulatedDevice
from dtcourse.models import Transformer, TransformerConfig
from dtcourse.pipeline_parallel import layers_of

TOKENS = torch.arange(12).view(2, 6) % 11
BY_SAMPLE = torch.tensor([[0, 1, 2, 3, 4, 5], [2, 3, 4, 5, 6, 7]])
SAID = "of this model are 0 to"


def model(positions: str) -> Transformer:
    return Transformer(TransformerConfig(11, 8, 1, 2, max_length=8, positions=positions))


def first(positions: str, layer: str) -> torch.nn.Module:
    return model(positions) if layer == "model" else layers_of(model(positions))[0]


@pytest.mark.parametrize("layer", ["model", "first layer"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize(
    ("tokens", "places", "sentence"),
    [
        (TOKENS, torch.arange(6) + 3, f"positions {SAID} 7 (max_length=8); got 3 to 8"),
        (TOKENS, torch.arange(6) - 1, f"positions {SAID} 7 (max_length=8); got -1 to 4"),
        (TOKENS, BY_SAMPLE + 1, f"positions {SAID} 7 (max_length=8); got 1 to 8"),
        (TOKENS + 1, None, f"tokens {SAID} 10 (vocab=11); got 1 to 11"),
        (TOKENS - 1, None, f"tokens {SAID} 10 (vocab=11); got -1 to 9"),
        (torch.zeros(1, 9, dtype=torch.long), None, "a sequence of 9 tokens; this model's longest is max_length=8"),
    ],
)  # fmt: skip
def test_what_has_no_place(layer, positions, tokens, places, sentence):
    with pytest.raises(ValueError) as caught:
        first(positions, layer)(tokens, places)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_the_last_position_and_positions_by_sample_are_taken(positions):
    whole = model(positions).double()
    one_by_one = [whole(tokens[None], at) for tokens, at in zip(TOKENS, BY_SAMPLE, strict=True)]
    torch.testing.assert_close(whole(TOKENS, BY_SAMPLE), torch.cat(one_by_one))


def test_an_index_error_of_something_else_is_left_as_it_is():
    whole = model("learned")
    whole.token_embedding.register_forward_pre_hook(lambda *_: [][0])
    with pytest.raises(IndexError, match="list index"):
        whole(TOKENS)


def test_where_a_look_would_wait_a_position_is_asserted_on_the_device(monkeypatch):
    monkeypatch.setattr(streams, "may_look", lambda x: False)
    model("rotary")(TOKENS, BY_SAMPLE)
    with pytest.raises(RuntimeError, match="a position is none of 0 to 7"):
        model("rotary")(TOKENS, BY_SAMPLE + 1)


def seconds(given):
    """Emulated, of what a first layer does with positions: a rotary one passes them on."""
    layer, before = layers_of(model("rotary"))[0], emulation.account().total
    layer(TOKENS, BY_SAMPLE) if given else layer(TOKENS)
    return emulation.account().total - before


def both():
    return seconds(given=False), seconds(given=True)


def test_an_emulated_step_takes_as_long_with_the_look_as_without():
    without, withs = launch(both, 1, devices=EmulatedDevice(1e9, 1e9))[0]
    assert without == withs > 0
