"""Where a parameter's pieces are: what is said of it, cut and put together, for any order of cuts."""

from __future__ import annotations

import pickle

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

from dtcourse import launch
from dtcourse.checkpoint.local_chunks import LocalChunks
from dtcourse.parameters import whole
from dtcourse.parameters.cuts import Copies, Elsewhere, Owners, Replicated, Run, Sliced
from dtcourse.parameters.naming import Entry, entries
from dtcourse.parameters.placement import (
    Placement,
    gradient_placement_of,
    local,
    place,
    place_gradients,
    placement_of,
)


def meshed():
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))


def flat_of(numbers, group, padded_to):
    """Cuts of two parameters that lie in one flat tensor."""
    each, start, cuts = padded_to // dist.get_world_size(group), 0, []
    for shape in numbers:
        cuts.append(Run(start, each, torch.Size(shape), group, flat=1))
        start += torch.Size(shape).numel()
    return cuts


def orders(mesh):
    """Many ways to cut a (7, 5) matrix on 2 x 2 ranks, each in an order of its own."""
    a, b = mesh["a"].get_group(), mesh["b"].get_group()
    yield "rows, then rows", [Sliced(0, 7, b), Sliced(0, 4, a, padded=False)]
    yield "rows, then rows, the other way", [Sliced(0, 7, a), Sliced(0, 4, b, padded=False)]
    yield "columns, then rows", [Sliced(1, 5, b), Sliced(0, 7, a, padded=False)]
    yield "columns of copies", [Sliced(1, 5, None, copies=2)]
    yield "rows, then a run", [Sliced(0, 7, b), *flat_of([(4, 5)], a, 22)]
    yield "columns, then a run", [Sliced(1, 5, b), *flat_of([(7, 3)], a, 22)]
    yield "the same, then a run", [Replicated(b), *flat_of([(7, 5)], a, 36)]
    yield "a run over all", flat_of([(7, 5)], None, 36)
    yield "rows of one rank more", [Sliced(0, 7, None)]
    yield "nothing", []


def there_and_back():
    mesh = meshed()
    numbers = torch.arange(1.0, 36).view(7, 5)
    for name, cuts in orders(mesh):
        placed = Placement(numbers.shape, tuple(cuts))
        mine = nn.Parameter(placed.cut(numbers).clone())
        place(mine, Placement(numbers.shape), *cuts)
        ((_, again),) = whole.gathered(
            [Entry(["x"], mine, placement_of(mine))], lambda e: local(e.parameter)
        )
        assert torch.equal(again, numbers), name
        # What a checkpoint would write: each element once, at its own place, but for copies.
        chunks = LocalChunks.of(placed, mine.detach())
        written = torch.zeros(7, 5)
        for offsets, box in chunks.pieces:
            written[tuple(slice(o, o + s) for o, s in zip(offsets, box.shape, strict=True))] += 1
        times = written if placed.counts else torch.zeros(7, 5)
        for group in placed.over:
            dist.all_reduce(times, group=group)
        assert torch.equal(times, torch.ones(7, 5)), (name, times)
        for offsets, box in chunks.pieces:
            assert torch.equal(
                box,
                numbers[tuple(slice(o, o + s) for o, s in zip(offsets, box.shape, strict=True))],
            ), name
    return True


class Second:
    """Has all gradients on the second rank of a group."""

    def __init__(self, group):
        self.group = group

    def owners(self, parameter):
        return Owners(1, self.group)


def on_owners():
    """Gradients of rows, whole on one rank of the other axis; one that nobody has; after their owner's end."""
    mesh = meshed()
    a, b = mesh["a"].get_group(), mesh["b"].get_group()
    numbers, found = torch.arange(1.0, 36).view(7, 5), []
    for name in ("x", "nobody's"):
        cut = Sliced(0, 7, b)
        mine = nn.Parameter(cut.cut(numbers))
        place(mine, Placement(numbers.shape), cut)
        if name == "x" and dist.get_rank(a) == 1:
            mine.grad = mine.detach() * 2
        found.append(mine)
    by = Second(a)
    place_gradients(found, by)
    said = gradient_placement_of(found[0])
    held = [Entry([str(i)], p, gradient_placement_of(p)) for i, p in enumerate(found)]
    (_, whole_one), (_, none) = whole.gathered(held, lambda e: e.parameter.grad)
    assert torch.equal(whole_one, numbers * 2) and none is None
    assert said.over == (b, a) and said.counts == (dist.get_rank(a) == 1)
    assert said.cut(numbers).numel() == (20 if said.counts else 0)
    assert placement_of(found[0]).over == (b,), "the parameter is on all"
    assert "whole on rank" in str(said)
    again = pickle.loads(pickle.dumps(found[0]))
    assert len(gradient_placement_of(again).cuts) == 1
    del by
    assert gradient_placement_of(found[0]).over == (b,)
    return str(said)


def test_a_gradient_on_its_owner_is_put_together_on_every_rank():
    assert "whole on rank 2 of 0, 2 (ZeRO)" in launch(on_owners, 4)[0]


def test_any_order_of_cuts_is_undone_and_is_boxes_of_the_whole():
    assert [*launch(there_and_back, 4)] == [True] * 4


def said():
    mesh = meshed()
    a, b = mesh["a"].get_group(), mesh["b"].get_group()
    weight = nn.Parameter(torch.ones(4, 5))
    place(weight, Placement(torch.Size((7, 5))), Sliced(0, 7, b))
    inner = str(placement_of(weight))
    place(weight, placement_of(weight), *flat_of([(4, 5)], a, 22))
    mixed = Placement(torch.Size((4,)), (Replicated(b, partial_gradient=True),))
    return (
        inner,
        str(placement_of(weight)),
        str(mixed),
        str(placement_of(nn.Parameter(torch.ones(3)))),
    )


def test_it_can_be_printed():
    inner, both, partial, plain = launch(said, 4)[1]
    assert inner == "(7, 5): Shard(dim=0) over ranks 0, 1 (tensor parallelism)"
    assert both == inner + "; Run(0:11 of 20) over ranks 1, 3 (full sharding)"
    assert (
        partial == "(4,): Replicate() over ranks 0, 1, its gradient Partial() (tensor parallelism)"
    )
    assert plain == "(3,): whole"


def in_torchs_words():
    cuts = [Sliced(1, 4), Replicated(), Sliced(0, 4, copies=2), Run(0, 8, torch.Size((4, 4)))]
    return [
        cut.placement == word
        for cut, word in zip(
            cuts, [Shard(1), Replicate(), Copies(Shard(0), 2), cuts[3]], strict=True
        )
    ]


def test_placements_are_torchs_own_where_it_has_a_word():
    assert all(launch(in_torchs_words, 2)[0])


class Wrapped(nn.Module):
    """A module in between, whose child has no name of its own; a tied weight; a module that is there twice."""

    def __init__(self):
        super().__init__()
        self.names_in_whole = {"mine": ""}
        self.mine = nn.ModuleDict({"up": nn.Linear(2, 3), "down": nn.Linear(2, 3)})
        self.mine["down"].weight = self.mine["up"].weight
        self.mine.register_buffer("seen", torch.zeros(1))


def test_names_are_the_whole_models():
    model = nn.Sequential(Wrapped(), nn.BatchNorm1d(2))
    found = {entry.names[0]: entry.names for entry in entries(model)}
    assert found["0.up.weight"] == ["0.up.weight", "0.down.weight"]
    assert "0.seen" in whole.full_state_dict(model)
    assert list(whole.full_gradients(model)) == [
        "0.up.weight",
        "0.up.bias",
        "0.down.bias",
        "1.weight",
        "1.bias",
    ]


class WithExtra(nn.Linear):
    def get_extra_state(self):
        return {"steps": self.steps}

    def set_extra_state(self, state):
        self.steps = state["steps"]


def test_what_modules_add_to_their_state_goes_along():
    def both_ways():
        model, other = WithExtra(2, 2), WithExtra(2, 2)
        model.steps, other.steps = 3, 0
        state = whole.full_state_dict(model)
        assert list(state) == list(model.state_dict())
        whole.load_full_state_dict(other, state)
        return other.steps

    assert launch(both_ways, 1)[0] == 3


def pickled():
    weight = nn.Parameter(torch.ones(2, 2))
    place(weight, Placement(torch.Size((4, 2))), Sliced(0, 4))
    again = pickle.loads(pickle.dumps(weight))
    assert placement_of(again).cuts == (Elsewhere("tensor parallelism"),)
    with pytest.raises(
        ValueError,
        match=r"x was cut \(tensor parallelism\) in a way, or in a process, that is unknown",
    ):
        list(
            whole.gathered([Entry(["x"], again, placement_of(again))], lambda e: local(e.parameter))
        )
    return True


def test_a_pickled_piece_is_still_a_piece():
    assert launch(pickled, 2)[0]


def test_over_one_rank_it_is_whole():
    def alone():
        weight = nn.Parameter(torch.ones(2, 2))
        place(weight, Placement(weight.shape), Sliced(0, 2))
        return placement_of(weight).cuts

    assert launch(alone, 1)[0] == ()


def loaded(state):
    mesh = meshed()
    model = nn.Linear(5, 7)
    weight = Placement(model.weight.shape, (Sliced(0, 7, mesh["b"].get_group()),))
    mine = nn.Parameter(weight.cut(model.weight.detach()))
    place(mine, Placement(model.weight.shape), *weight.cuts)
    model.weight = mine
    before = whole.full_state_dict(model)
    said = []
    for wrong in (
        {"weight": state["weight"]},
        {**state, "more": torch.ones(1)},
        {**state, "weight": state["weight"][:4]},
        state if dist.get_rank() else {},
    ):
        with pytest.raises(ValueError) as caught:
            whole.load_full_state_dict(model, wrong)
        said.append(str(caught.value))
    for name, value in whole.full_state_dict(model).items():
        assert torch.equal(value, before[name]), "nothing was changed"
    whole.load_full_state_dict(model, state)
    for name, value in whole.full_state_dict(model).items():
        assert torch.equal(value, state[name])
    return said


def test_another_models_state_is_refused_on_every_rank():
    for missing, more, shape, other in launch(loaded, 4, nn.Linear(5, 7).state_dict()):
        assert "missing bias; unexpected none" in missing
        assert "missing none; unexpected more" in more
        assert "weight is [7, 5] in the model and [4, 5] in the state. Nothing was loaded" in shape
        assert "missing bias, weight" in other
