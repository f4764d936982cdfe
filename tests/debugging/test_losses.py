"""Two layouts' losses: the first step that differs, and what that says."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.debugging import compare_layouts
from dtcourse.parameters.replicas import average_gradients, broadcast_model

NAN = float("nan")


def train(wrong="", steps=6):
    """Data parallel; `wrong` plants one mistake."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0 if wrong != "start" else 1)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    broadcast_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    make, losses = torch.Generator().manual_seed(5), []
    for step in range(steps):
        x = torch.randn(12, 3, generator=make, dtype=torch.double)
        if wrong == "data" and step == 4:
            x = x + 0.01
        loss = model(x.chunk(size)[rank]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        if wrong == "sum":  # a mean that was forgotten
            for parameter in model.parameters():
                parameter.grad *= size
        optimizer.step()
        mean = loss.detach() / size
        dist.all_reduce(mean)
        losses.append(mean.item())
    return losses


def by_layout():
    """One launch of three ranks: as they are, and with each mistake."""
    return {wrong: train(wrong) for wrong in ("", "start", "sum", "data")}


def test_the_first_step_that_differs_and_what_it_says():
    """Each mistake is one of a layout; the truth is one process."""
    three = launch(by_layout, 3)

    def layout(wrong):
        return [found[wrong] for found in three]

    found = compare_layouts({"one": lambda: launch(train, 1), "three": layout("")}, tolerance=1e-12)
    assert not found and len(found.relative) == 6
    assert str(found).startswith("one and three have the same losses over 6 steps, to ")
    for wrong, kind, step, words in [
        ("start", "start", 0, "no update yet"),
        ("sum", "update", 1, "the gradients or the optimizer's step"),
        ("data", "jump", 4, "another batch"),
    ]:
        found = compare_layouts({"right": layout(""), wrong: layout(wrong)}, tolerance=1e-10)
        assert (found.kind, found.step) == (kind, step), str(found)
        assert words in str(found) and f"differ first at step {step}" in str(found)


def test_rounding_that_has_grown_is_told_from_a_jump():
    losses = [1.0] * 8
    grown = [1 + 1e-8 * 4**i for i in range(8)]
    found = compare_layouts({"a": losses, "b": grown}, tolerance=1e-5)
    assert (found.kind, found.step) == ("growth", 5) and "has grown" in str(found)
    found = compare_layouts({"a": losses, "b": [*grown[:5], 1.1, 1.1, 1.1]}, tolerance=1e-5)
    assert (found.kind, found.step) == ("jump", 5)


def test_one_that_stops_or_is_not_finite():
    found = compare_layouts({"a": [2.0, 1.0], "b": [2.0, 1.0, 0.5]})
    assert (found.kind, found.step) == ("length", 2) and "a has 2 steps and b 3 steps" in str(found)
    found = compare_layouts({"a": [2.0, NAN], "b": [2.0, 1.0]})
    assert (found.kind, found.step) == ("update", 1)
    assert not compare_layouts({"a": [2.0, NAN], "b": [2.0, NAN]})


def test_a_pipeline_s_first_ranks_have_none():
    assert not compare_layouts({"a": [[None, None], [2.0, 1.0]], "b": [None, [2.0, 1.0]]})


def test_what_cannot_be_compared():
    with pytest.raises(ValueError, match="two layouts or more can be compared; got 1 layout"):
        compare_layouts({"a": [1.0]})
    with pytest.raises(ValueError, match="b has returned no losses"):
        compare_layouts({"a": [1.0], "b": [None, None]})
    with pytest.raises(
        ValueError, match="in b, rank 0 has loss 2 at step 1 and rank 1 3: give the whole"
    ):
        compare_layouts({"a": [1.0, 2.0], "b": [[1.0, 2.0], [1.0, 3.0]]})
