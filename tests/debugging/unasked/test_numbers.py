"""Tensors without numbers, of which nothing can be said; and the first that is not finite, where it has arrived."""

from __future__ import annotations

import torch

from dtcourse.debugging.unasked.numbers import FirstNotFinite, made
from dtcourse.torch_private import fake_tensors


def said(program):
    watch = FirstNotFinite()
    watch.begin()
    try:
        result = program()
    finally:
        seen = watch.end()
    return made([seen], [result])


def test_what_has_a_shape_and_no_numbers_is_left_alone():
    """DTensor runs an operation on FakeTensors to learn the shape of its result."""

    def propagates():
        with fake_tensors():
            x = torch.ones(4, 3)
            return list((x @ x.T).shape)

    assert said(propagates) is None
    assert said(lambda: list((torch.ones(2, device="meta") + 1).shape)) is None


def test_memory_that_is_filled_while_it_is_looked_at():
    """By a collective's thread: what was not finite at the first look is so no more."""
    watch = FirstNotFinite()
    watch._note("split", torch.zeros(4))
    assert watch._first is None


def test_the_first_is_named():
    sentence = said(lambda: torch.zeros(3).log() + 1)
    assert sentence is not None and "log" in sentence and "-inf in 3 of 3" in sentence
