"""Gradients over the axes on which a batch is divided: the mean of all ranks', in few messages of as many bytes."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch
from dtcourse.collectives import ring, traffic
from dtcourse.parameters.averaging import average, sum_together
from dtcourse.parameters.cuts import Replicated, Sliced
from dtcourse.parameters.naming import entries
from dtcourse.parameters.placement import place, placement_of
from dtcourse.parameters.whole import full_gradients
from dtcourse.torch_private import version_of
from dtcourse.verify import compare
from tests.pairs.layouts import EXPERTS, Layout, alone, backward, batch, build, share

DOUBLE = 8  # bytes


def axes(shape=(2, 2)):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "inner"))
    return [mesh["data"].get_group(), mesh["inner"].get_group()]


# --- messages and bytes ---------------------------------------------------------------------------------------------


SIZES = (1, 1000, 25 << 20)  # of a bucket


def counted(layout):
    """On a rank: its whole gradients with buckets of each size; elements of the trained parameters, experts first."""
    mesh, found = layout.mesh(), []
    model = layout.apply(build(EXPERTS), mesh)
    x, y = (share(layout, mesh, t) for t in batch(EXPERTS))
    for bucket_bytes in SIZES:
        model.zero_grad()
        model.loss(x, y).backward()
        with traffic.phase(str(bucket_bytes)):
            average(model, [mesh.get_group("data"), mesh.get_group("inner")], bucket_bytes)
        found.append(full_gradients(model))
    trained = [e for e in entries(model) if e.parameter.requires_grad]
    experts = [e.parameter.numel() for e in trained if ".experts." in e.names[0]]
    others = [e.parameter.numel() for e in trained if ".experts." not in e.names[0]]
    return found, experts, others


def expected(messages, shape, rank):
    """What a ring's all-reduces of so many elements send: experts' on the data axis, all others' on both."""
    data, inner = (partial(ring.all_reduce_volume, itemsize=DOUBLE, ranks=p) for p in shape)
    at = divmod(rank, shape[1])
    volumes = [data(n, rank=at[0]) for kind in messages for n in kind]
    volumes += [inner(n, rank=at[1]) for n in messages[1]]
    return sum(v.messages for v in volumes), sum(v.elements for v in volumes) * DOUBLE


@pytest.mark.parametrize("shape", [(2, 2), (3, 2)], ids=str)
def test_one_message_per_bucket_and_axis_with_the_bytes_of_the_formula(shape):
    layout, right = Layout("nothing", "expert", shape), alone(EXPERTS, 1).gradients[0]
    for name, parameter in build(EXPERTS).named_parameters():
        if parameter.requires_grad and right[name] is None:  # zeros are made of none
            right[name] = torch.zeros_like(parameter)
    run = launch(counted, layout.ranks, layout, backend="ring", record=True)
    for rank, (found, experts, others) in enumerate(run):
        for gradients in found:
            compare(gradients, right, 1e-12, f"rank {rank}: gradient", norm=2)
        # A bucket for each parameter, or all of a kind in one.
        each, all_in_one = (experts, others), ([sum(experts)], [sum(others)])
        for kinds, size in ((each, SIZES[0]), (all_in_one, SIZES[-1])):
            here = {"rank": rank, "phase": str(size)}
            assert run.traffic.calls(**here) == len(kinds[0]) + 2 * len(kinds[1])
            messages, sent = expected(kinds, shape, rank)
            assert run.traffic.messages_sent(**here) == messages
            assert run.traffic.bytes_sent(**here) == sent
        # Each bucket but a kind's last has at least its size.
        most = sum(experts) * DOUBLE // 1000 + 1 + 2 * (sum(others) * DOUBLE // 1000 + 1)
        calls = run.traffic.calls(rank=rank, phase="1000")
        assert 3 < calls <= most < len(experts) + 2 * len(others)
    data, inner = shape
    on_data, on_inner = 2 * (data - 1) * inner, 2 * (inner - 1) * data
    total = (on_data * (sum(experts) + sum(others)) + on_inner * sum(others)) * DOUBLE
    for size in SIZES:
        assert run.traffic.bytes_sent(phase=str(size)) == total


def test_what_is_averaged_already_is_not_written_again():
    gradients = [torch.ones(3), torch.ones(2)]
    sum_together(gradients, ())
    assert [version_of(gradient) for gradient in gradients] == [0, 0]
    sum_together(gradients, (), 0.5)
    assert [gradient.tolist() for gradient in gradients] == [[0.5] * 3, [0.5] * 2]


# --- values ---------------------------------------------------------------------------------------------------------


class Odd(nn.Module):
    """Gradients of all kinds: of two dtypes, transposed, missing on some or all ranks, and frozen."""

    def __init__(self, groups):
        super().__init__()
        me, make = dist.get_rank(), torch.Generator().manual_seed(dist.get_rank())
        for name in ("both", "turned", "mine", "nobodys", "frozen", "cut"):
            parameter = nn.Parameter(torch.zeros(3, 4, dtype=torch.double))
            self.register_parameter(name, parameter)
            parameter.grad = torch.randn(3, 4, dtype=torch.double, generator=make)
        self.turned.grad = torch.randn(4, 3, dtype=torch.double, generator=make).T
        self.nobodys.grad = None
        if me:
            self.mine.grad = None
        self.frozen.requires_grad_(False)
        self.large = nn.Parameter(torch.zeros(5, dtype=torch.half))
        self.large.grad = torch.full((5,), 40000.0, dtype=torch.half)  # two of them are inf
        whole = placement_of(nn.Parameter(torch.zeros(6, 4)))
        place(self.cut, whole, Sliced(0, 6, groups[1]), Replicated(groups[0]))


def means(bucket_bytes):
    groups = axes()
    model = Odd(groups)
    before = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    average(model, groups, bucket_bytes)
    return before, {n: p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("bucket_bytes", [1, 200, 1 << 20])
def test_each_gradient_is_the_mean_over_the_ranks_that_hold_the_same(bucket_bytes):
    run = launch(means, 4, bucket_bytes)
    for rank, (own, after) in enumerate(run):
        for name in own:
            sum_of = [before[name] for before, _ in run]
            if name == "frozen":
                assert torch.equal(after[name], own[name])
                continue
            if name == "cut":  # ranks 0 and 2 hold one piece, 1 and 3 the other
                sum_of = sum_of[rank % 2 :: 2]
            total = sum(
                torch.zeros(after[name].shape, dtype=torch.double) if g is None else g.double()
                for g in sum_of
            )
            assert torch.allclose(after[name].double(), total / 4, rtol=1e-12, atol=1e-15), name
            other = run[rank % 2 if name == "cut" else 0][1][name]
            assert torch.equal(after[name], other), f"{name}: replicas are the same, bit by bit"


def one_axis_wrong(layout, mistake):
    mesh = layout.mesh()
    model = layout.apply(build(EXPERTS), mesh)
    x, y = (share(layout, mesh, t) for t in batch(EXPERTS))
    model.loss(x, y).backward()
    data, inner = mesh.get_group("data"), mesh.get_group("inner")
    average(model, {"no data": [inner], "no inner": [data]}[mistake])
    mine, right = full_gradients(model), alone(EXPERTS, 1).gradients[0]
    return [n for n, g in right.items() if g is not None and not torch.allclose(mine[n], g, rtol=1e-6)]  # fmt: skip


@pytest.mark.parametrize("mistake", ["no data", "no inner"])
def test_an_axis_too_few_is_seen(mistake):
    for wrong in launch(one_axis_wrong, 4, Layout("nothing", "expert", (2, 2)), mistake):
        assert any(".experts." in n for n in wrong), wrong
        assert any(".experts." not in n for n in wrong), wrong


# --- groups that are not the model's --------------------------------------------------------------------------------


def over_another_mesh(layout):
    """The same axes, in groups that were made again."""
    mesh, again = layout.mesh(), layout.mesh()
    assert mesh.get_group("inner") is not again.get_group("inner")
    model = layout.apply(build(EXPERTS), mesh)
    backward(model, layout, again, 0, EXPERTS)
    return full_gradients(model)


def test_axes_are_known_by_their_ranks():
    right = {n: g for n, g in alone(EXPERTS, 1).gradients[0].items() if g is not None}
    for found in launch(over_another_mesh, 4, Layout("nothing", "expert", (2, 2))):
        compare({n: found[n] for n in right}, right, 1e-12, norm=2)


def refused():
    groups, said = axes(), []
    sparse = nn.Embedding(4, 2, sparse=True)
    sparse(torch.tensor([dist.get_rank()])).sum().backward()
    for model, over in ((Odd(groups), [None]), (sparse, groups)):
        before = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        with traffic.counting() as sent, pytest.raises(ValueError) as caught:
            average(model, over)
        assert not sent.rows
        for name, parameter in model.named_parameters():
            if name in before:
                assert torch.equal(parameter.grad.to_dense(), before[name].to_dense())
            else:
                assert parameter.grad is None
        said.append(str(caught.value))
    return said


def test_a_group_of_equal_and_different_pieces_and_sparse_gradients_are_refused():
    for rank, (world, sparse) in enumerate(launch(refused, 4, backend="ring")):
        node = [0, 1] if rank < 2 else [2, 3]
        assert (
            f"cut is cut over ranks {node}, and its gradient cannot be averaged over ranks [0, 1, 2, 3]"
            in world
        )
        assert "weight has a sparse gradient" in sparse
