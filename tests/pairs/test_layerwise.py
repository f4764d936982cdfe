"""LARS and LAMB on layers that one or two techniques have cut: a trust ratio is of the whole layer's norms."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.large_batch import LAMB, LARS
from dtcourse.parameters.whole import full_state_dict
from dtcourse.verify import compare
from tests.pairs.layouts import EXPERTS, GPT2, LLAMA, ONE_KV_HEAD, Layout, backward, batch, build

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("tests/pairs/", "dtcourse/parameters/")

STEPS = 2


def optimizer_of(name, model):
    trained = [p for p in model.parameters() if p.requires_grad]
    if name == "LARS":
        return LARS(trained, 1.0, weight_decay=0.01, trust=0.1, adapt_one_dimensional=True)
    return LAMB(trained, 0.1, weight_decay=0.01, max_weight_norm=1.5)


@cache
def truth(name, config):
    model = build(config)
    optimizer = optimizer_of(name, model)
    for step in range(STEPS):
        optimizer.zero_grad()
        model.loss(*batch(config, step)).backward()
        if config.experts:  # average_gradients makes zeros of what is unused, and those decay
            for p in model.unused.parameters():
                p.grad = torch.zeros_like(p)
        optimizer.step()
    return {n: t.clone() for n, t in model.state_dict().items()}


def together(layout, config, name):
    mesh = layout.mesh()
    model = layout.apply(build(config), mesh)
    optimizer = optimizer_of(name, model)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, layout, mesh, step, config)
        with traffic.phase("update"):
            optimizer.step()
    return full_state_dict(model)


LAYOUTS = [
    pytest.param(Layout("nothing", "tensor", (1, 2)), LLAMA, id="tensor"),
    pytest.param(Layout("nothing", "tensor", (1, 4)), ONE_KV_HEAD, id="tensor, copies"),
    pytest.param(Layout("nothing", "expert", (2, 2)), EXPERTS, id="expert"),
    *(
        pytest.param(Layout(outer, inner, shape), config, id=f"{outer} over {inner}")
        for outer in ("fully_shard", "FullyShardedDataParallel")
        for inner, shape, config in (
            ("nothing", (3, 1), GPT2),
            ("tensor", (2, 2), GPT2),
            ("expert", (2, 2), EXPERTS),
        )
    ),
]


@pytest.mark.parametrize("name", ["LARS", "LAMB"])
@pytest.mark.parametrize(("layout", "config"), LAYOUTS)
def test_a_step_is_one_processs_where_layers_are_cut(layout, config, name):
    right = truth(name, config)
    for state in launch(together, layout.ranks, layout, config, name):
        compare(state, right, 1e-10, f"{name}, {layout}: value", norm=2)


@pytest.mark.parametrize(("name", "norms"), [("LARS", 2), ("LAMB", 2)])
def test_norms_of_all_layers_travel_together(name, norms):
    layout = Layout("fully_shard", "tensor", (2, 2))
    run = launch(together, 4, layout, GPT2, name, backend="ring", record=True)
    # A ring of two ranks: one message each for the reduce-scatter and for the all-gather, on two axes.
    assert run.traffic.messages_sent(phase="update") <= STEPS * norms * 2 * 4 * 2


def test_a_local_norm_would_be_another_step():
    """What the test above would see: the same step by the norms of this rank's parts alone."""
    right = truth("LARS", GPT2)
    for state in launch(by_local_norms, 2, Layout("nothing", "tensor", (1, 2))):
        with pytest.raises(AssertionError):
            compare(state, right, 1e-3, norm=2)


def by_local_norms(layout):
    mesh = layout.mesh()
    model = layout.apply(build(GPT2), mesh)
    optimizer = optimizer_of("LARS", model)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(model, layout, mesh, step, GPT2)
        hidden = {p: p.__dict__.pop("placed", None) for p in model.parameters()}
        optimizer.step()
        for p, placed in hidden.items():
            if placed is not None:
                p.placed = placed
    return full_state_dict(model)


def test_half_precision_layers_do_not_overflow_where_they_are_cut():
    def norm_of_parts():
        layout = Layout("nothing", "tensor", (1, 2))
        mesh = layout.mesh()
        model = layout.apply(build(GPT2).half(), mesh)
        weight = model.blocks[0].mlp.up.weight
        nn.init.constant_(weight, 6e4)
        weight.grad = torch.ones_like(weight)
        LARS([weight], 1.0, momentum=0.0, trust=1e-3).step()
        return weight.detach().float()

    for weight in launch(norm_of_parts, 2):
        assert weight.isfinite().all()
        assert weight.max() == pytest.approx(6e4 * (1 - 1e-3), rel=1e-3)
