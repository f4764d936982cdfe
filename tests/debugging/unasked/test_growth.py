"""Memory of which more stays alive after each step of an optimizer, and what is more for another reason."""

from __future__ import annotations

import torch
from torch import nn

from dtcourse.debugging.unasked.growth import Growth, LiveBytes, grows


def said(program, returns=False):
    """What is told of a program, which keeps what it returns."""
    watch = LiveBytes()
    watch.begin()
    try:
        kept = program()
    finally:
        seen = watch.end()
    return grows([seen], [kept if returns else None])


def step(model, optimizer):
    loss = model(torch.ones(2, 64)).square().sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def made():
    model = nn.Linear(64, 64)
    return model, torch.optim.Adam(model.parameters())


def test_a_graph_that_is_kept_is_told_with_two_optimizers_too():
    def one(optimizers=1):
        pairs, kept = [made() for _ in range(optimizers)], []
        for _ in range(8):
            for model, optimizer in pairs:
                kept.append(step(model, optimizer))
                kept.append(torch.zeros(512))
        return kept

    for program in (one, lambda: one(optimizers=2)):
        sentence = said(program)
        assert sentence is not None and "test_growth.py" in sentence


def test_models_that_are_made_one_after_the_other_are_no_leak():
    """As where a notebook compares several, or each layer has an optimizer of its own."""

    def several():
        kept = []
        for _ in range(8):
            kept.append(made())
            step(*kept[-1])
        return kept

    assert said(several) is None
    pairs = [made() for _ in range(8)]
    assert said(lambda: [step(*pair).item() for pair in pairs]) is None
    assert said(lambda: [step(*pairs[0]).item() for _ in range(8)]) is None


def test_what_a_program_returns_it_has_kept_for_that():
    def gradients():
        model, optimizer = made()
        kept = []
        for _ in range(8):
            step(model, optimizer)
            kept.append({"weight": model.weight.detach().clone()})
        return kept

    assert said(gradients) is not None
    assert said(gradients, returns=True) is None


def test_a_program_that_fails_has_no_results():
    assert grows([None, Growth(4096, "a.py:1")], []) == (
        "On rank 1 each step leaves 4,096 bytes or more alive, most of them made at a.py:1."
    )
