"""An optimizer's state in a checkpoint, whatever it is made of: it comes back as it was, or nothing is written."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from dtcourse import checkpoint, launch, nested
from dtcourse.fault_tolerance import RankState
from dtcourse.fault_tolerance.packed import copied
from dtcourse.parameters.placement import local
from dtcourse.sharding import ZeroRedundancyOptimizer, fully_shard


class Nests(torch.optim.SGD):
    """Keeps what `made` gives for each parameter, and adds the gradient to what is shaped like it."""

    made = staticmethod(lambda p: {})

    def step(self, closure=None):
        for p in (p for group in self.param_groups for p in group["params"]):
            state = self.state[p]
            if not state:
                state.update(self.made(p))
            for tensor in nested.tensors(state):
                tensor.add_(p.grad if tensor.shape == p.shape else 0.5)
        return super().step(closure)


def by_element(p):
    """As deep as one likes, with a number per element."""
    return {
        "step": torch.zeros(()),
        "kind": "soap",
        "nested": {"m": torch.zeros_like(p), "more": [{"v": torch.zeros_like(p)}, 3, "text"]},
        "list": [torch.zeros_like(p), torch.zeros(())],
        "numbers": [1, 2, [3.5]],
    }


def matrices(p):
    """Shampoo's: one for each dim, and as a tuple, and one at the top."""
    made = [torch.zeros(n, n + 1) for n in p.shape]
    return {
        "gg": made,
        "tuple": tuple(torch.zeros(n + 1) for n in p.shape),
        "first": made[0].clone(),
    }


def in_a_tuple(p):
    return {"gg": tuple(torch.zeros(n, n + 1) for n in p.shape)}


class Hidden:
    pass


OPTIONS = {"meta": {"kind": "decay", "factor": 0.5, "of": [{"a": 1}]}, "names": ["a", "b"]}


def training(how, made, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    if how == "fully_shard":
        fully_shard(model)
    kind = type("Nests", (Nests,), {"made": staticmethod(made)})
    if how == "ZeRO-1":
        optimizer = ZeroRedundancyOptimizer(model.parameters(), kind, lr=0.1)
    else:
        optimizer = kind(model.parameters(), lr=0.1)
    return model, optimizer


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()


def held(model, optimizer):
    """Each parameter's state on this rank, in torch's own tensors, and the options."""
    states = [
        nested.map_tensors(local, dict(optimizer.state.get(p, {}))) for p in model.parameters()
    ]
    options = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
    return states, options


def same(one, other):
    """Whether two nests are alike in types, keys and values."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[k], other[k]) for k in one)
        )
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other


def both_ways(folder, how, made):
    """Whether a run that has loaded is the one that was saved: now, and after one step more."""
    model, optimizer = training(how, made)
    for _ in range(2):
        step(model, optimizer)
    optimizer.param_groups[0].update(OPTIONS)
    saved = copied(held(model, optimizer))
    checkpoint.save(folder, model, optimizer)
    again = training(how, made, seed=1)
    checkpoint.load(folder, *again)
    found = [same(saved, held(*again))]
    for one in ((model, optimizer), again):
        step(*one)
    return [*found, same(held(model, optimizer), held(*again))]


@pytest.mark.parametrize(
    ("how", "made"),
    [(how, by_element) for how in ("plain", "fully_shard", "ZeRO-1")]
    + [("plain", matrices), ("ZeRO-1", matrices)],
)
def test_a_nested_state_comes_back_as_it_was(how, made, tmp_path):
    assert list(launch(both_ways, 2, tmp_path / "saved", how, made)) == [[True, True]] * 2


def write(folder, made):
    model, optimizer = training("fully_shard", made)
    step(model, optimizer)
    checkpoint.save(folder, model, optimizer)


def read(folder, how, made):
    model, optimizer = training(how, made, seed=1)
    checkpoint.load(folder, model, optimizer)
    step(model, optimizer)
    return held(model, optimizer)[0]


def alone(made):
    model, optimizer = training("plain", made)
    for _ in range(2):
        step(model, optimizer)
    return held(model, optimizer)[0]


def test_what_ranks_have_cut_is_whole_elsewhere(tmp_path):
    """Saved in parts by two ranks, loaded whole: as if one process had trained."""
    launch(write, 2, tmp_path / "saved", by_element)
    for found, expected in zip(
        launch(read, 1, tmp_path / "saved", "plain", by_element)[0],
        launch(alone, 1, by_element)[0],
        strict=True,
    ):
        for one, other in zip(nested.tensors(found), nested.tensors(expected), strict=True):
            torch.testing.assert_close(one, other)


def in_memory():
    """The same by RankState, which copies in other ranks' memory are made of."""
    model, optimizer = training("fully_shard", by_element)
    step(model, optimizer)
    kept = copied(RankState(model, optimizer).state_dict())
    again = training("fully_shard", by_element, seed=1)
    RankState(*again).load_state_dict(kept)
    for one in ((model, optimizer), again):
        step(*one)
    return same(held(model, optimizer), held(*again))


def test_copies_in_memory_have_nested_states_too():
    assert all(launch(in_memory, 2))


REFUSED = {
    "matrices of a shard": ("fully_shard", matrices, r"gg\[0\] has a tensor of shape \[5, 6\], its shard \[5, 4\]"),
    "a tuple of matrices of a shard": ("fully_shard", in_a_tuple, "gg has tensors in a tuple, .*put them into a list"),
    "a number as a key": ("plain", lambda p: {"of": {3: torch.zeros(1)}}, r"of has a dict with the keys \[3\]"),
    "an empty dict": ("plain", lambda p: {"of": {"a": {}}}, "of: a has a dict without anything"),
    "an object": ("plain", lambda p: {"of": [Hidden()]}, r"of\[0\] is a Hidden, and a checkpoint keeps tensors"),
}  # fmt: skip


def refused(folder):
    said = {}
    for key, (how, made, _) in REFUSED.items():
        model, optimizer = training(how, made)
        step(model, optimizer)
        with pytest.raises(ValueError) as caught:
            checkpoint.save(folder / key, model, optimizer)
        assert not (folder / key).exists()
        said[key] = str(caught.value)
    return said


def test_what_would_not_come_back_is_refused_before_anything_is_written(tmp_path):
    for said in launch(refused, 2, tmp_path):
        for key, (_, _, words) in REFUSED.items():
            assert re.search(words, said[key]), said[key]
            assert said[key].endswith("Nothing was saved")


def write_matrices(folder):
    model, optimizer = training("plain", matrices)
    step(model, optimizer)
    checkpoint.save(folder, model, optimizer)


def read_in_parts(folder):
    with pytest.raises(ValueError) as caught:
        read(folder, "fully_shard", matrices)
    return str(caught.value)


def test_a_whole_parameters_matrices_are_not_a_parts(tmp_path):
    launch(write_matrices, 1, tmp_path / "saved")
    for said in launch(read_in_parts, 2, tmp_path / "saved"):
        assert (
            "of 0.weight is [5, 6], of the whole parameter [5, 4], and this rank has a part of it"
            in said
        )
