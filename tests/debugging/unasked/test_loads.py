"""States of which tensors are left out for a wrapper's name, and those that leave something out on purpose."""

from __future__ import annotations

import torch
from torch import nn

from dtcourse.debugging.unasked.loads import Loads, left_out


def build(classes=2):
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, classes))


def said(state, model):
    watch, untouched = Loads(), nn.Module.load_state_dict
    watch.begin()
    try:
        model.load_state_dict(state, strict=False)
    finally:
        seen = watch.end()
    assert nn.Module.load_state_dict is untouched
    return left_out([[], seen], [None, None])


def test_a_wrappers_name_is_found_on_either_side():
    inside = {f"module.{name}": value for name, value in build().state_dict().items()}
    sentence = said(inside, build())
    assert sentence is not None
    assert sentence.startswith("On rank 1, the model has taken 0 of its 4 tensors")
    assert "it was given module.0.weight where it has 0.weight, and 3 more so" in sentence
    outside = said(build().state_dict(), nn.ModuleDict({"module": build()}))
    assert outside is not None
    assert "it was given 0.weight where it has module.0.weight" in outside


def test_half_of_it_is_enough():
    state = build().state_dict()
    state["_orig_mod.1.bias"] = state.pop("1.bias")
    sentence = said(state, build())
    assert sentence is not None
    assert "taken 3 of its 4" in sentence


def test_what_is_meant_is_no_mistake():
    """Everything fits; another head under another name; one of another shape; a part alone."""
    state = build().state_dict()
    assert said(state, build()) is None
    assert said({"0.weight": state["0.weight"], "head.weight": torch.ones(2, 4)}, build()) is None
    assert said({"old.1.weight": torch.ones(7, 4)}, build()) is None
    assert said({"0.weight": state["0.weight"]}, build()) is None
