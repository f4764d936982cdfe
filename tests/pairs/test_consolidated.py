"""ZeRO-1 over another technique: what it consolidates is the plain optimizer's state dict, and it loads that one."""

from __future__ import annotations

import copy

import pytest
import torch

from dtcourse import launch
from dtcourse.parameters.whole import full_state_dict
from dtcourse.sharding import ZeroRedundancyOptimizer
from dtcourse.verify import compare
from tests.pairs.layouts import (
    EXPERTS,
    GPT2,
    LLAMA,
    MAX_NORM,
    ONE_KV_HEAD,
    Layout,
    Training,
    batch,
    build,
    clip_grad_norm,
    sgd,
)

STEPS, TO = 2, 1


def alone(config, given=None):
    """Two steps in one process, and what its optimizer has then; or, from what is given, a third one."""
    model = build(config)
    optimizer = sgd(model)
    if given is not None:
        state, optimizer_state = given
        model.load_state_dict(state)
        optimizer.load_state_dict(copy.deepcopy(optimizer_state))  # it would step on what is given
    for step in range(STEPS) if given is None else [STEPS]:
        optimizer.zero_grad()
        model.loss(*batch(config, step)).backward()
        clip_grad_norm(model, MAX_NORM)
        optimizer.step()
    return model.state_dict(), optimizer.state_dict()


def together(layout, config, right):
    """Two steps, consolidated; then one more from one process's state dict."""
    training = Training(layout, config, seed=0)
    for step in range(STEPS):
        training.step(step)
    optimizer = training.optimizer
    optimizer.consolidate_state_dict(TO)
    found = optimizer.state_dict() if optimizer.rank == TO else None
    before = full_state_dict(training.model)
    optimizer.load_state_dict(right)
    training.step(STEPS)
    return before, found, full_state_dict(training.model)


def slots(state_dict):
    return {
        f"{slot} of parameter {number}": value
        for number, state in state_dict["state"].items()
        for slot, value in state.items()
        if value is not None
    }


@pytest.mark.parametrize(
    ("inner", "config"),
    [("tensor", GPT2), ("tensor", LLAMA), ("tensor", ONE_KV_HEAD), ("expert", EXPERTS)],
    ids=["padded rows", "grouped heads", "heads held twice", "experts"],
)
def test_the_plain_optimizers_state_dict_comes_out_and_goes_in(inner, config):
    state, optimizer_state = alone(config)
    third, _ = alone(config, (state, optimizer_state))
    ranks = launch(together, 4, Layout("ZeRO-1", inner, (2, 2)), config, optimizer_state)
    assert [found is not None for _, found, _ in ranks] == [False, False, True, True]
    for rank, (mine, found, after) in enumerate(ranks):
        compare(after, third, 1e-12, f"rank {rank}: value after a third step", norm=2)
        if found is None:
            continue
        right = slots(optimizer_state)
        known = slots(found)  # average_gradients makes zeros of gradients that nobody has
        compare({n: known[n] for n in right}, right, 1e-12, f"rank {rank}:", norm=2)
        assert not any(value.any() for n, value in known.items() if n not in right)
        loaded, _ = alone(config, (mine, found))
        compare(loaded, third, 1e-12, f"rank {rank}: value of one process's third step", norm=2)


def refusal_of(optimizer):
    """What rank TO gets for the states, when all ranks ask; "" on the others."""
    if optimizer.rank != TO:
        optimizer.consolidate_state_dict(TO)
        return ""
    with pytest.raises(ValueError) as caught:
        optimizer.consolidate_state_dict(TO)
    return str(caught.value)


def rows_and_columns(layout):
    """Adafactor keeps means over rows and columns, of a slice."""
    training = Training(layout, GPT2, seed=0)
    trained = [p for p in training.model.parameters() if p.requires_grad]
    group = training.mesh.get_group("data")
    optimizer = ZeroRedundancyOptimizer(trained, torch.optim.Adafactor, group, lr=0.1)
    training.backward(0)
    optimizer.step()
    return refusal_of(optimizer)


def test_what_is_no_slice_of_a_parameter_is_refused():
    _, _, *said = launch(rows_and_columns, 4, Layout("ZeRO-1", "tensor", (2, 2)))
    for words in said:
        assert words.startswith(
            "row_var of parameter 0 has shape [16, 1], and this rank's slice of the parameter"
        )
        assert "of the whole [31, 16] is unknown" in words


def lists(layout):
    """A slot that is a list, whose tensors nobody would put together."""
    training = Training(layout, GPT2, seed=0)
    training.step(0)
    optimizer = training.optimizer
    for parameter in optimizer.owned():
        optimizer.state[parameter] = {"gg": [torch.zeros(2)]}
    return refusal_of(optimizer)


def test_a_nest_of_a_slices_tensors_is_refused():
    _, _, *said = launch(lists, 4, Layout("ZeRO-1", "tensor", (2, 2)))
    for words in said:
        assert words.startswith("gg of parameter 0 is a list with tensors, of this rank's slice")
