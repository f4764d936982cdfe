"""A plan for the model itself, and the styles and options of PyTorch's parallelize_module, beside PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import parallel as theirs

from dtcourse import launch, tensor_parallel
from dtcourse.tensor_parallel import ColwiseParallel, RowwiseParallel, parallelize
from dtcourse.verify import compare


def the_mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))


def made(kind=nn.Linear, *args):
    torch.manual_seed(0)
    return kind(*args).double()


# --- the model itself is named --------------------------------------------------------------------------------------


def roots():
    mesh, p = the_mesh(), dist.get_world_size()
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    right = made(nn.Linear, 8, 16)
    right(x).square().sum().backward()
    shapes = []
    for plan in (
        {"": ColwiseParallel(gather_output=True)},
        ColwiseParallel(gather_output=True),
        {"": RowwiseParallel(input_is_parallel=False)},
        RowwiseParallel(input_is_parallel=False),
    ):
        model = parallelize(made(nn.Linear, 8, 16), plan, mesh)
        shapes.append(tuple(model.weight.shape))
        y = model(x)
        compare({"y": y}, {"y": right(x)}, 1e-12, "output")
        y.square().sum().backward()
        found = tensor_parallel.full_gradients(model)
        compare(found, {n: p.grad for n, p in right.named_parameters()}, 1e-12, "gradient")
    assert shapes == [(16 // p, 8)] * 2 + [(16, 8 // p)] * 2
    # PyTorch's own cut of the root has the same slices.
    torchs = theirs.parallelize_module(made(nn.Linear, 8, 16), mesh, theirs.RowwiseParallel())
    assert torchs.weight.to_local().shape == model.weight.shape
    assert torch.equal(torchs.weight.to_local(), model.weight)
    return True


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_a_plan_for_the_root_cuts_it(world_size):
    assert [*launch(roots, world_size)] == [True] * world_size


def root_mistakes():
    mesh = the_mesh()
    with pytest.raises(ValueError, match="and the model is a Sequential"):
        parallelize(nn.Sequential(nn.Linear(4, 4)), {"": ColwiseParallel()}, mesh)
    with pytest.raises(ValueError, match="the inputs of the model, 5, cannot be cut over 2 ranks"):
        parallelize(nn.Linear(5, 4), RowwiseParallel(), mesh)
    # A star is one part of a name, and the model itself has none.
    model = parallelize(nn.Sequential(nn.Linear(4, 4)), {"*": ColwiseParallel()}, mesh)
    assert model[0].weight.shape == (2, 4)
    return True


def test_what_does_not_fit_the_root_is_named():
    assert [*launch(root_mistakes, 2)] == [True] * 2
