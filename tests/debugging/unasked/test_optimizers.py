"""Optimizers whose parameters nobody uses, and counters that stand: told from those that are as they should be."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtcourse.debugging.unasked.optimizers import OptimizerSteps, step_on_nothing


class Counting(torch.optim.Optimizer):
    """Plain steps, of which the state keeps a count, as one of several kinds."""

    def __init__(self, parameters, kind):
        super().__init__(parameters, {})
        self.kind = kind

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            state = self.state[p]
            before = state.setdefault("step", torch.zeros(()) if self.kind == "tensor" else 0)
            if self.kind == "tensor":
                before += 1
            elif self.kind == "number":
                state["step"] = before + 1
            elif self.kind == "beside":
                state["turns"] = state.get("turns", 0) + 1
            p.sub_(0.1 * p.grad)


def said(train):
    watch = OptimizerSteps()
    watch.begin()
    try:
        train()
    finally:
        seen = watch.end()
    return step_on_nothing([seen, seen], [None, None])


def train(model, optimizer, steps=4):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()


def build():
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


@pytest.mark.parametrize("kind", ["tensor", "number", "beside", "stands"])
def test_a_counter_that_stands_is_named(kind):
    def trains():
        model = build()
        train(model, Counting(model.parameters(), kind))

    sentence = said(trains)
    if kind == "stands":
        assert sentence is not None
        assert (
            "On ranks 0 and 1, the step of 0.weight in the state of Counting is 0 after each of 4"
            in sentence
        )
    else:
        assert sentence is None


def test_two_updates_prove_nothing():
    def trains():
        model = build()
        train(model, Counting(model.parameters(), "stands"), steps=2)

    assert said(trains) is None


def test_torchs_own_optimizers_are_silent():
    def trains():
        for kind in ("Adam", "AdamW", "ASGD", "Adagrad", "NAdam", "RMSprop", "Rprop", "SGD"):
            model = build()
            train(model, getattr(torch.optim, kind)(model.parameters(), lr=0.01))

    assert said(trains) is None


def test_parameters_that_were_replaced_are_named():
    def trains():
        model = build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model[1].weight = nn.Parameter(model[1].weight.detach().clone())
        train(model, optimizer)

    sentence = said(trains)
    assert sentence is not None
    assert "1 of the 4 parameters of SGD have had no gradient in 4 steps" in sentence
    assert "1.weight (2, 4) has one and is in no optimizer" in sentence


def test_what_another_optimizer_has_or_nobody_wants_trained_is_no_mistake():
    """Two optimizers, a head alone, masters in more digits, and a part of the model that is never called."""

    def two():
        model = build()
        optimizers = [torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model]
        for optimizer in optimizers:
            train(model, optimizer)

    def masters():
        model = build()
        copies = [nn.Parameter(p.detach().double()) for p in model.parameters()]
        optimizer = torch.optim.SGD(copies, lr=0.1)
        for _ in range(4):
            model(torch.ones(2, 3)).sum().backward()
            for p, copy in zip(model.parameters(), copies, strict=True):
                copy.grad = p.grad.double()
            optimizer.step()

    def dead():
        """A number without influence, whose momentum is 0 after each step."""
        model = build()
        model.register_parameter("number", nn.Parameter(torch.ones(())))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for _ in range(4):
            optimizer.zero_grad()
            (model(torch.ones(2, 3)).sum() + 0 * model.number).backward()
            optimizer.step()

    def unused():
        model = build()
        train(model[0], torch.optim.SGD(model.parameters(), lr=0.1))

    assert said(two) is None
    assert said(masters) is None
    assert said(dead) is None
    assert said(unused) is None
