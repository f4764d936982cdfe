"""A plan for the model itself, and the styles and options of PyTorch's parallelize_module, beside PyTorch's own."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor import parallel as theirs

from dtcourse import launch, tensor_parallel
from dtcourse.collectives import traffic
from dtcourse.tensor_parallel import ColwiseParallel, RowwiseParallel, parallelize
from dtcourse.tensor_parallel.prepare import redistribute
from dtcourse.verify import compare
from tests.turns import taking_turns


def the_mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))


def made(kind=nn.Linear, *args, **options):
    torch.manual_seed(0)
    return kind(*args, **options).double()


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


@pytest.mark.parametrize("world_size", [1, 4, *taking_turns(2, about="dtcourse/tensor_parallel/")])
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


# --- inputs and outputs laid out, beside PyTorch's own ---------------------------------------------------------------


class Block(nn.Module):
    """Two inputs, one by keyword, and two outputs."""

    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x, count, bias=None):
        y = self.down(self.up(x).tanh())
        return y if bias is None else y + count * bias, 2


R, S0, S1, P = Replicate(), Shard(0), Shard(1), Partial()
IN_OUT = {  # layouts of x as it comes and as it is wanted, of the keyword, and of the output
    "rows come": (S0, R, (S0, R), (R, S0)),
    "rows come and go": (S0, R, (R, R), (R, R)),
    "tokens come": (S1, R, (S1, R), (R, S1)),
    "whole": (R, R, (S0, R), (R, R)),
}


def plans(which, x_has, x_wants, keyword, out, local):
    """The three styles, of either module; `local`: PyTorch's word for plain tensors."""
    both = {
        "input_layouts": (x_has, None),
        "desired_input_layouts": (x_wants, None),
        "input_kwarg_layouts": {"bias": keyword[0]},
        "desired_input_kwarg_layouts": {"bias": keyword[1]},
    }
    outputs = {"output_layouts": (out[0], None), "desired_output_layouts": (out[1], None)}
    return (
        [which.PrepareModuleInput(**both, use_local_output=local)],
        [which.PrepareModuleOutput(**outputs)],
        [which.PrepareModuleInputOutput(**both, **outputs, use_local_input=local)],
    )


def laid_out(name):
    """Outputs and gradients of x, the keyword and the weights: ours, PyTorch's, for each of the three styles."""
    mesh, (x_has, x_wants, keyword, out) = the_mesh(), IN_OUT[name]
    results = []
    for which in (tensor_parallel, theirs):
        mine = []
        for number, styles in enumerate(plans(which, x_has, x_wants, keyword, out, True)):
            block = made(Block)
            if which is theirs:
                theirs.parallelize_module(
                    block, mesh, {"up": theirs.ColwiseParallel(), "down": theirs.RowwiseParallel()}
                )
                for style in styles:
                    theirs.parallelize_module(block, mesh, style)
            else:
                parallelize(block, {"up": ColwiseParallel(), "down": RowwiseParallel()}, mesh)
                for style in styles:
                    parallelize(block, style, mesh, src_data_rank=None)
            make = torch.Generator().manual_seed(2)
            whole = [torch.randn(4, 8, 8, generator=make, dtype=torch.double) for _ in range(2)]
            # Where no style prepares the inputs they come whole.
            layouts = (x_has, keyword[0]) if number != 1 else (R, R)
            x, bias = (_part(t, layout) for t, layout in zip(whole, layouts, strict=True))
            y, two = block(x.requires_grad_(), 3, bias=bias.requires_grad_())
            assert two == 2
            (y.sin() * _part(whole[0], out[1] if number else R).cos()).sum().backward()
            weights = {n: p.grad for n, p in block.named_parameters()}
            if which is theirs:
                weights = {n: g.to_local() for n, g in weights.items()}
            mine.append({"y": y, "x": x.grad, "keyword": bias.grad} | weights)
        results.append(mine)
    return results


def _part(whole, layout):
    if layout.is_replicate():
        return whole.clone()
    return whole.chunk(dist.get_world_size(), layout.dim)[dist.get_rank()].clone()


@pytest.mark.parametrize("world_size", [1, 4, *taking_turns(2, about="dtcourse/tensor_parallel/")])
@pytest.mark.parametrize("name", IN_OUT)
def test_inputs_and_outputs_are_laid_out_as_pytorchs(name, world_size):
    for ours, torchs in launch(laid_out, world_size, name):
        for mine, right in zip(ours, torchs, strict=True):
            compare(mine, right, 1e-12, name)


def redistributed():
    """Values of each pair of layouts, against PyTorch's DTensor."""
    mesh, group = the_mesh(), the_mesh().get_group()
    whole = torch.randn(4, 8, generator=torch.Generator().manual_seed(3), dtype=torch.double)
    tried = 0
    for has in (R, S0, S1, P):
        for wanted in (R, S0, S1):
            local = _part(whole, has) if not has.is_partial() else whole * (1 + dist.get_rank())
            right = DTensor.from_local(local, mesh, [has]).redistribute(mesh, [wanted]).to_local()
            compare(
                {"x": redistribute(local, has, wanted, group)},
                {"x": right},
                1e-12,
                f"{has}, {wanted}",
            )
            tried += 1
    assert redistribute(whole, P, P, group) is whole
    with pytest.raises(ValueError, match="cannot become P"):
        redistribute(whole, R, P, group)
    return tried


@pytest.mark.parametrize("world_size", [1, 4, *taking_turns(2, about="dtcourse/tensor_parallel/")])
def test_every_pair_of_layouts(world_size):
    assert [*launch(redistributed, world_size)] == [12] * world_size


def wrong_layouts():
    mesh = the_mesh()
    Input, Output = tensor_parallel.PrepareModuleInput, tensor_parallel.PrepareModuleOutput
    for make, words in (
        (lambda: Input((R, R), R), "should have same length: got 2 and 1"),
        (lambda: Input(R), "should have same length: got 1 and 0"),
        (lambda: Input(None, None, {"a": R}, {"b": R}), r"\['a'\] and \['b'\]"),
        (lambda: Output(R, (R, R)), "output_layouts and desired_output_layouts"),
        (lambda: Input(R, R, use_local_output=False), "plain tensors"),
        (
            lambda: parallelize(nn.Linear(2, 2), Input((R, R), (R, R)), mesh)(torch.ones(2)),
            "module inputs and input_layouts should have same length: there are 1 and 2",
        ),
        (
            lambda: parallelize(nn.Linear(2, 2), Output((R, R), (R, R)), mesh)(torch.ones(2)),
            "module outputs and output_layouts",
        ),
        (
            lambda: parallelize(nn.Linear(2, 2), Input(R, S0), mesh)(torch.ones(3, 2)),
            "3 is not a multiple of 2",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            make()
    return True


def test_layouts_that_do_not_fit_are_named():
    assert [*launch(wrong_layouts, 2)] == [True] * 2


# --- an embedding by its columns -------------------------------------------------------------------------------------


def by_columns(width):
    mesh = the_mesh()
    tokens = torch.tensor([[1, 5, 2], [5, 0, 6]])
    for options in ({}, {"padding_idx": 5}, {"scale_grad_by_freq": True}):
        embedding = made(nn.Embedding, 7, width, **options)
        right = embedding(tokens)
        (right**2).sum().backward()
        for gather in (True, False):
            model = parallelize(
                nn.Sequential(made(nn.Embedding, 7, width, **options)),
                {"0": ColwiseParallel(gather_output=gather)},
                mesh,
            )
            y = model(tokens)
            start, used = model[0].shard.start, model[0].shard.used
            compare({"y": y}, {"y": right if gather else right[..., start : start + used]}, 1e-15)
            (y**2).sum().backward()
            found = tensor_parallel.full_gradients(model)["0.weight"]
            compare({"w": found}, {"w": embedding.weight.grad}, 1e-12)
            compare(tensor_parallel.full_state_dict(model), {"0.weight": embedding.weight}, 0.0)
    if width % dist.get_world_size() == 0:  # PyTorch's own
        torchs = theirs.parallelize_module(
            made(nn.Embedding, 7, width), mesh, theirs.ColwiseParallel()
        )
        mine = parallelize(made(nn.Embedding, 7, width), ColwiseParallel(), mesh)
        assert torch.equal(torchs.weight.to_local(), mine.weight)
        assert torch.equal(torchs(tokens), mine(tokens))
    # Tied to a layer that reads the same columns; and what needs whole rows.
    tied = nn.Sequential(made(nn.Embedding, 7, width), made(nn.Linear, width, 7))
    tied[1].weight = tied[0].weight
    if width % dist.get_world_size() == 0:
        parallelize(tied, {"0": ColwiseParallel(), "1": RowwiseParallel()}, mesh)
        assert tied[1].weight is tied[0].weight
        whole = made(nn.Embedding, 7, width)(tokens) @ made(nn.Embedding, 7, width).weight.T
        compare({"y": tied(tokens) - tied[1].bias}, {"y": whole}, 1e-12)
    with pytest.raises(ValueError, match=r"max_norm=1\.0 cannot be cut by columns"):
        parallelize(nn.Embedding(7, width, max_norm=1.0), ColwiseParallel(), mesh)
    return True


@pytest.mark.parametrize(
    "world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/tensor_parallel/")]
)
@pytest.mark.parametrize("width", [8, 5])
def test_an_embedding_by_its_columns(width, world_size):
    assert [*launch(by_columns, world_size, width)] == [True] * world_size


# --- nothing is sent --------------------------------------------------------------------------------------------------


def sent(source):
    mesh = the_mesh()
    model = nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel(), "2": ColwiseParallel()}
    torch.manual_seed(dist.get_rank())
    with traffic.counting() as counts:
        parallelize(model, plan, mesh, src_data_rank=source)
    return counts.calls(), torch.rand(()).item()


def test_without_a_source_nothing_is_sent():
    (calls, drawn), (no_calls, also_drawn) = launch(sent, 2, None, backend="ring")
    assert calls == no_calls == 0
    assert drawn == also_drawn, "one random state for all, even so"
    messages = sum(found for found, _ in launch(sent, 2, 0, backend="ring"))
    assert messages > 0
