"""One process's norm and clipping, and its state, from a model whose experts are given out: whatever the mesh."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch
from dtcourse.expert_parallel import (
    average_gradients,
    clip_grad_norm,
    expert_parallel,
    full_gradients,
    full_state_dict,
    load_full_state_dict,
)
from dtcourse.verify import compare, gradients_of
from tests.expert_parallel.mixtures import E, alone, loss_of, mixture, tokens

MESHES = {  # of so many ranks: shape, and the axes over which experts are given out
    1: [((1,), None)],
    2: [((2,), None)],
    4: [((4,), None), ((2, 2), "b"), ((2, 2), "a"), ((2, 2), ("a", "b"))],
}


def meshes():
    for shape, axes in MESHES[dist.get_world_size()]:
        yield init_device_mesh("cpu", shape, mesh_dim_names=("a", "b")[: len(shape)]), axes


def clipped():
    W, me, found = dist.get_world_size(), dist.get_rank(), []
    parts = tokens([5, 0, 9, 2][:W])
    for mesh, axes in meshes():
        for norm_type, max_norm in ((2.0, 0.5), (1.0, 3.0), (3.0, 1e9), (math.inf, 0.1)):
            plain, moe = mixture(shared=True), mixture(shared=True)
            for one in (plain, moe):
                one.experts.up_bias.requires_grad_(False)
            expert_parallel(moe, mesh, axes)
            alone(plain, parts)
            loss_of(moe, parts[me], W / sum(map(len, parts))).backward()
            average_gradients(moe, mesh)
            right = torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm, norm_type)
            norm = clip_grad_norm(moe, max_norm, norm_type)
            assert norm.item() == pytest.approx(right.item(), rel=1e-12)
            compare(full_gradients(moe), gradients_of(plain), 1e-10, f"{norm_type} gradient", norm=2)  # fmt: skip
            replicated = {
                n: p.grad.clone() for n, p in moe.named_parameters() if "experts." not in n
            }
            found.append((norm, replicated))
        moe.gate.linear.weight.grad[0, 0] = torch.nan
        clip_grad_norm(moe, 1.0)
        with pytest.raises(RuntimeError, match="global norm is nan"):
            clip_grad_norm(moe, 1.0, error_if_nonfinite=True)
        for bad, message in (
            ({"max_norm": 0.0}, "max_norm is a number above 0; got 0.0"),
            ({"max_norm": 1.0, "norm_type": -1.0}, "above 0, or inf; got -1.0"),
        ):
            with pytest.raises(ValueError, match=message):
                clip_grad_norm(moe, **bad)
    return found


@pytest.mark.parametrize("world_size", MESHES)
def test_the_norm_and_what_is_clipped_are_one_processs(world_size):
    run = launch(clipped, world_size)
    assert len(run[0]) == 4 * len(MESHES[world_size])
    for others in run:
        for (norm, replicated), (one, first) in zip(others, run[0], strict=True):
            assert torch.equal(norm, one), "the same scale on every rank, bit by bit"
            for name, gradient in replicated.items():
                assert torch.equal(gradient, first[name]), name


def forgets_the_other_ranks():
    """Broken on purpose: PyTorch's own, which sees this rank's experts alone."""
    moe = expert_parallel(mixture(), init_device_mesh("cpu", (2,)))
    loss_of(moe, tokens([6, 6])[dist.get_rank()], 1 / 6).backward()
    average_gradients(moe, init_device_mesh("cpu", (2,)))
    wrong = torch.nn.utils.clip_grad_norm_(moe.parameters(), 1e9)
    return wrong.item(), clip_grad_norm(moe, 1e9).item()


def test_pytorchs_own_gives_each_rank_another_norm():
    (zero, right), (one, _) = launch(forgets_the_other_ranks, 2)
    assert zero != pytest.approx(one)
    assert max(zero, one) < right


def states():
    tried = 0
    x = tokens([7])[0]
    for mesh, axes in meshes():
        for options in ({"shared": True}, {"gate": "by bias", "kind": "swiglu"}):
            other = mixture(**options)
            for value in other.state_dict().values():
                value.uniform_(-1, 1)
            moe = expert_parallel(mixture(**options), mesh, axes)
            frozen = [p.requires_grad for p in moe.parameters()]
            load_full_state_dict(moe, other.state_dict())
            compare(full_state_dict(moe), other.state_dict(), 0.0, "value")
            assert torch.allclose(moe(x), other(x), rtol=1e-12)
            again = mixture(**options)
            again.load_state_dict(full_state_dict(moe))  # strictly: the plain model's names
            assert torch.equal(again(x), other(x))
            assert [p.requires_grad for p in moe.parameters()] == frozen
            tried += 1
    return tried


@pytest.mark.parametrize("world_size", MESHES)
def test_a_plain_models_state_goes_in_and_comes_out(world_size):
    assert [*launch(states, world_size)] == [2 * len(MESHES[world_size])] * world_size


def of_another_model():
    moe = expert_parallel(mixture(), init_device_mesh("cpu", (2,)))
    before, whole = full_state_dict(moe), mixture().state_dict()
    half = {n: v[: E // 2] if n.startswith("experts.") else v for n, v in whole.items()}
    less = {n: v for n, v in whole.items() if n != "gate.linear.weight"}
    said = []
    for state in (
        half,
        less,
        {**whole, "norm.weight": torch.ones(2)},
        less if dist.get_rank() else whole,
    ):
        with pytest.raises(ValueError) as caught:
            load_full_state_dict(moe, {n: v + 1 for n, v in state.items()})
        said.append(str(caught.value))
    compare(full_state_dict(moe), before, 0.0, "value")
    return said


def test_another_models_state_is_refused_on_every_rank_and_nothing_is_changed():
    run = launch(of_another_model, 2)
    for half, less, more, _ in run:
        assert f"experts.up is [{E}, 6, 5] in the model and [{E // 2}, 6, 5] in the state" in half
        assert "missing gate.linear.weight; unexpected none" in less
        assert "missing none; unexpected norm.weight" in more
    assert "rank 1 could not go on, so no rank does: ValueError: the state is of" in run[0][3]
