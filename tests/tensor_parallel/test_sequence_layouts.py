"""PyTorch's layouts along the sequence, and SequenceParallel: as one process, as PyTorch's own, for their bytes."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor import parallel as theirs

from dtcourse import launch, tensor_parallel
from dtcourse.collectives import traffic
from dtcourse.parameters.partial_gradients import sum_gradients, summed_once
from dtcourse.tensor_parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    full_gradients,
    parallelize,
)
from dtcourse.tensor_parallel.layouts import redistribute
from dtcourse.verify import compare
from tests.turns import taking_turns

R, S0, S1, LAST, P = Replicate(), Shard(0), Shard(1), Shard(-1), Partial()
BATCH, TOKENS, WIDTH, HIDDEN, VOCAB = 2, 8, 8, 12, 20
some_ranks = pytest.mark.parametrize(
    "world_size", [1, 4, *taking_turns(2, about="dtcourse/tensor_parallel/")]
)


def the_mesh():
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tensor",))


def part(whole, layout):
    if layout.is_replicate():
        return whole.clone()
    return whole.chunk(dist.get_world_size(), layout.dim)[dist.get_rank()].clone()


def drawn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


class Residual(nn.Module):
    """An embedding and two blocks, each a norm and an MLP beside a residual; LayerNorm and RMSNorm."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.RMSNorm(WIDTH)])
        self.up = nn.ModuleList([nn.Linear(WIDTH, HIDDEN), nn.Linear(WIDTH, HIDDEN, bias=False)])
        self.down = nn.ModuleList([nn.Linear(HIDDEN, WIDTH), nn.Linear(HIDDEN, WIDTH)])
        self.output = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for norm, up, down in zip(self.norms, self.up, self.down, strict=True):
            x = x + down(up(norm(x)).tanh())
        return self.output(x)


def residual():
    torch.manual_seed(0)
    model = Residual().double()
    with torch.no_grad():
        for norm in model.norms:  # PyTorch's ones would hide a mistake
            norm.weight.copy_(drawn(WIDTH, seed=9))
    return model


def plan(which):
    """Between the regions each rank has its own tokens: the very plan for either module."""
    local = {} if which is tensor_parallel else {"use_local_output": True}
    rows = {"input_layouts": R} if which is theirs else {}
    return {
        "embedding": which.RowwiseParallel(**rows, output_layouts=S1),
        "norms.*": which.SequenceParallel(**local),
        "up.*": which.ColwiseParallel(input_layouts=S1),
        "down.*": which.RowwiseParallel(output_layouts=S1),
        "output": which.ColwiseParallel(input_layouts=S1, output_layouts=R),
    }


def loss_of(model):
    tokens = torch.randint(VOCAB, (BATCH, TOKENS), generator=torch.Generator().manual_seed(3))
    return (model(tokens).sin() * drawn(BATCH, TOKENS, VOCAB)).sum()


def whole_model():
    right = residual()
    loss_of(right).backward()
    gradients = {n: p.grad for n, p in right.named_parameters()}
    mesh = the_mesh()
    ours = parallelize(residual(), plan(tensor_parallel), mesh)
    loss = loss_of(ours)
    loss.backward()
    compare({"loss": loss}, {"loss": loss_of(right)}, 1e-12)
    compare(full_gradients(ours), gradients, 1e-12, "ours")
    again = copy.deepcopy(ours)
    again.zero_grad()
    loss_of(again).backward()
    compare(full_gradients(again), gradients, 1e-12, "a copy")
    torchs = theirs.parallelize_module(residual(), mesh, plan(theirs))
    loss_of(torchs).backward()
    found = {n: p.grad.full_tensor() for n, p in torchs.named_parameters()}
    compare(full_gradients(ours), found, 1e-12, "PyTorch's")
    return len(found)


@some_ranks
def test_a_model_whose_ranks_have_their_own_tokens_between_regions(world_size):
    assert [*launch(whole_model, world_size)] == [13] * world_size


def tied_norms():
    def model():
        made = residual()
        made.norms[1].weight = made.norms[0].weight
        return made

    right = model()
    loss_of(right).backward()
    ours = parallelize(model(), plan(tensor_parallel), the_mesh())
    for made in (ours, copy.deepcopy(ours)):
        made.zero_grad()
        loss_of(made).backward()
        gradients = {n: p.grad for n, p in right.named_parameters()}
        compare(full_gradients(made), gradients, 1e-12)


def test_the_gradient_of_a_norm_that_stands_twice_is_added_up_once():
    launch(tied_norms, 2)


LAYOUTS = {  # style, layouts of the input and the output
    "columns, tokens": ("Colwise", S1, None),
    "columns, rows": ("Colwise", S0, None),
    "columns, tokens in and out": ("Colwise", S1, S1),
    "columns, features": ("Colwise", LAST, R),
    "columns, whole": ("Colwise", R, LAST),
    "columns, out by rows": ("Colwise", None, S0),
    "columns, parts of a sum": ("Colwise", P, None),
    "rows, to tokens": ("Rowwise", None, S1),
    "rows, to rows": ("Rowwise", LAST, S0),
    "rows, whole to tokens": ("Rowwise", R, S1),
    "rows, tokens to tokens": ("Rowwise", S1, S1),
    "rows, to features": ("Rowwise", None, LAST),
    "rows, to the last dim by its number": ("Rowwise", Shard(2), Shard(2)),
    "rows, parts of a sum": ("Rowwise", P, R),
}


def one_layer(name):
    style, has, wanted = LAYOUTS[name]
    mesh, results = the_mesh(), []
    options = {"input_layouts": has, "output_layouts": wanted}
    options = {key: layout for key, layout in options.items() if layout is not None}
    for which in (tensor_parallel, theirs):
        torch.manual_seed(0)
        layer = nn.Linear(WIDTH, 16).double()
        made = getattr(which, f"{style}Parallel")(**options)
        layer = (parallelize if which is tensor_parallel else theirs.parallelize_module)(
            layer, *((made, mesh) if which is tensor_parallel else (mesh, made))
        )
        comes = has or (R if style == "Colwise" else LAST)
        whole = drawn(4, TOKENS, WIDTH)
        x = whole / dist.get_world_size() if comes.is_partial() else part(whole, comes)
        y = layer(x.requires_grad_())
        (
            y.sin()
            * part(drawn(4, TOKENS, 16, seed=2), wanted or (LAST if style == "Colwise" else R))
        ).sum().backward()
        if which is tensor_parallel:
            gradients = full_gradients(layer)
        else:
            gradients = {n: p.grad.full_tensor() for n, p in layer.named_parameters()}
        # A copy: what PyTorch gives may still be on its way, and a copy waits for it.
        results.append({"y": y, "x": x.grad.clone()} | gradients)
    return results


@some_ranks
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layers_layouts_are_pytorchs(name, world_size):
    for ours, torchs in launch(one_layer, world_size, name):
        assert len(ours) == 4
        compare(ours, torchs, 1e-12, name)


def embeddings():
    tokens = torch.randint(VOCAB, (4, TOKENS), generator=torch.Generator().manual_seed(3))
    right = nn.Embedding(VOCAB, WIDTH, dtype=torch.double)
    with torch.no_grad():
        right.weight.copy_(drawn(VOCAB, WIDTH))
    weights = drawn(4, TOKENS, WIDTH, seed=2)
    (right(tokens).sin() * weights).sum().backward()
    for style in (ColwiseParallel, RowwiseParallel):
        for has in (None, R, S1):
            for wanted in (R, S0, S1, LAST, Shard(2)):
                mine = copy.deepcopy(right)
                cut = parallelize(mine, style(input_layouts=has, output_layouts=wanted), the_mesh())
                y = cut(part(tokens, has or R))
                compare(
                    {"y": y}, {"y": part(right(tokens), wanted)}, 1e-12, f"{style}, {has}, {wanted}"
                )
                (y.sin() * part(weights, wanted)).sum().backward()
                found = full_gradients(cut)
                compare(found, {"weight": right.weight.grad}, 1e-12, f"{style}, {has}, {wanted}")
    # A width that does not divide: the last dim by its number is what each rank has already, as in PyTorch's.
    uneven, last = nn.Embedding(VOCAB, 5, dtype=torch.double), {"output_layouts": Shard(2)}
    mine = parallelize(copy.deepcopy(uneven), ColwiseParallel(**last), the_mesh())
    torchs = theirs.parallelize_module(uneven, the_mesh(), theirs.ColwiseParallel(**last))
    compare({"y": mine(tokens)}, {"y": torchs(tokens)}, 0.0)
    return True


@some_ranks
def test_an_embeddings_layouts(world_size):
    assert all(launch(embeddings, world_size))


# --- bytes ------------------------------------------------------------------------------------------------------------


def counted(sequence):
    """Bytes that this rank sends for an MLP's forward and backward, and for its norm's gradients."""
    mesh = the_mesh()
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.RMSNorm(WIDTH),
        nn.Linear(WIDTH, HIDDEN, bias=False),
        nn.Linear(HIDDEN, WIDTH, bias=False),
    )
    cut = {"1": ColwiseParallel(), "2": RowwiseParallel()}
    if sequence:
        cut = {
            "0": SequenceParallel(),
            "1": ColwiseParallel(input_layouts=S1),
            "2": RowwiseParallel(output_layouts=S1),
        }
    parallelize(model, cut, mesh)
    x = part(torch.randn(BATCH, 64, WIDTH), S1 if sequence else R)
    with traffic.counting() as found:
        y = model(x)
    forward = found.bytes_sent()
    with traffic.counting() as found:
        y.sum().backward()
    return forward, found.bytes_sent()


@pytest.mark.parametrize("world_size", [2, 4])
def test_cut_tokens_cost_the_bytes_of_whole_ones(world_size):
    """An all-reduce is a reduce-scatter and an all-gather: 2 (p - 1)/p n each way, and the norm's gradient besides."""
    once = 2 * (world_size - 1) * BATCH * 64 * WIDTH * 4 // world_size
    norm = 2 * (world_size - 1) * WIDTH * 4 // world_size
    for sent in launch(counted, world_size, False, backend="ring"):
        assert sent == (once, once)
    for sent in launch(counted, world_size, True, backend="ring"):
        assert sent == (once, once + norm)


# --- gradients that are a sum over the ranks' own tokens --------------------------------------------------------------


def own_tokens():
    """A norm, and rows whose sum goes to the ranks by tokens, both with biases; frozen while they are cut."""
    mesh, plan = the_mesh(), {"0": SequenceParallel(), "1": ColwiseParallel(input_layouts=S1)}
    torch.manual_seed(0)
    right = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH))
    right = right.double().requires_grad_(False)
    mine = copy.deepcopy(right)
    parallelize(mine, plan | {"2": RowwiseParallel(output_layouts=S1)}, mesh)
    mine, micro_batches = copy.deepcopy(mine.requires_grad_(True)), range(3)  # hooks go to copies
    right.requires_grad_(True)
    for number in micro_batches:
        right(drawn(2, TOKENS, WIDTH, seed=number)).sin().sum().backward()
    with traffic.counting() as counted, summed_once(mine.parameters()):
        for number in micro_batches:
            mine(part(drawn(2, TOKENS, WIDTH, seed=number), S1)).sin().sum().backward()
    once = full_gradients(mine)
    compare(once, {n: p.grad for n, p in right.named_parameters()}, 1e-12, "added up once")
    # Differentiated again: the penalty of a gradient.
    twice = []
    for model, x in ((right, drawn(2, TOKENS, WIDTH)), (mine, part(drawn(2, TOKENS, WIDTH), S1))):
        model.zero_grad()
        last = model[2].bias
        (gradient,) = torch.autograd.grad(model(x).sin().sum(), [last], create_graph=True)
        (gradient**2).sum().backward()
        twice.append(last.grad)
    compare({"twice": twice[1]}, {"twice": twice[0]}, 1e-12)
    return counted.calls(operation="all_reduce")


def test_norms_and_rows_biases_are_added_up_also_where_they_were_frozen_before():
    # A message for the norm, and one in each backward for the bias of the rows, whose sum is in the graph: parameters
    # that are made anew (torch's fully_shard, to_empty) would lose a hook.
    assert list(launch(own_tokens, 2, backend="ring")) == [4, 4]


def test_what_has_no_gradients_is_passed_over():
    with torch.inference_mode():
        made = torch.ones(2)
    codes = nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False)
    sum_gradients([codes, made, nn.Parameter(torch.ones(2))], group=None)


# --- dropouts, and what does not fit ----------------------------------------------------------------------------------


def dropped():
    model = parallelize(nn.Sequential(nn.Dropout(0.5)), {"0": SequenceParallel()}, the_mesh())
    return model(torch.ones(1, 64, 4)).tolist(), torch.rand(()).item()


def test_a_dropout_draws_other_masks_for_each_ranks_tokens():
    (one, after), (other, also_after) = launch(dropped, 2)
    assert one != other
    assert after == also_after, "and all ranks' random state is one afterwards"


class OwnNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.normalized_shape = 4  # where nn.LayerNorm has (4,)
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return x / x.norm(dim=-1, keepdim=True) * self.weight


def own_norm():
    model = parallelize(OwnNorm(), SequenceParallel(sequence_dim=0), the_mesh())
    model(drawn(2, 4, seed=dist.get_rank()).float()).sum().backward()
    right = OwnNorm()
    right(torch.cat([drawn(2, 4, seed=rank) for rank in range(2)]).float()).sum().backward()
    compare({"weight": model.weight.grad}, {"weight": right.weight.grad}, 1e-6)
    # By keyword, as modules may be called.
    assert torch.equal(model(x=torch.ones(2, 4)), model(torch.ones(2, 4)))
    dropout = parallelize(nn.Dropout(0.5), SequenceParallel(), the_mesh())
    assert dropout(input=torch.ones(100)).count_nonzero() < 100
    return True


def test_a_norm_of_ones_own_is_taken_at_its_word():
    assert all(launch(own_norm, 2))


def mistakes():
    mesh = the_mesh()
    row = parallelize(nn.Linear(4, 4), RowwiseParallel(output_layouts=S1), mesh)
    for make, words in (
        (lambda: row(torch.ones(1, 3, 2)), r"dim 1 of a tensor of shape \(1, 3, 4\) cannot be cut into 2 equal slices"),
        (lambda: RowwiseParallel(output_layouts=P), r"output_layouts=P.*taken for its whole"),
        (lambda: ColwiseParallel(output_layouts=P), r"output_layouts=P.*taken for its whole"),
        (lambda: ColwiseParallel(True, input_layouts=S1), r"gather_output=True is output_layouts=Replicate\(\)"),
        (lambda: RowwiseParallel(False, output_layouts=S1), r"input_is_parallel=False is input_layouts=Replicate\(\)"),
        (lambda: SequenceParallel(use_local_output=False), "plain tensors"),
        (lambda: RowwiseParallel(use_local_output=False), "plain tensors"),
        (
            lambda: parallelize(nn.BatchNorm1d(4), SequenceParallel(), mesh),
            "SequenceParallel is for nn.LayerNorm or nn.RMSNorm or nn.Dropout, and the model is a BatchNorm1d",
        ),
        (
            lambda: parallelize(nn.LayerNorm((3, 4)), SequenceParallel(), mesh)(torch.ones(2, 3, 4)),
            r"a norm over the last 2 dims of an input of shape \(2, 3, 4\) is over dim 1 as well",
        ),
        (
            lambda: parallelize(OwnNorm(), SequenceParallel(), mesh)(x=torch.ones(2, 4)),
            r"a norm over the last 1 dim of an input of shape \(2, 4\) is over dim 1 as well",
        ),
        (lambda: ColwiseParallel(input_layouts=Partial("avg")), "make their 'avg'; here they are added up"),
        (lambda: RowwiseParallel(input_layouts=Partial("max")), "make their 'max'; here they are added up"),
        (lambda: tensor_parallel.PrepareModuleInput(Partial("avg"), R), "make their 'avg'"),
        (lambda: tensor_parallel.PrepareModuleInput(None, None, {"x": Partial("avg")}, {"x": R}), "make their 'avg'"),
        (lambda: tensor_parallel.PrepareModuleOutput(Partial("avg"), R), "make their 'avg'"),
        (lambda: redistribute(torch.ones(2), Partial("avg"), R), "make their 'avg'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            make()
    return True


def test_what_does_not_fit_is_named():
    assert all(launch(mistakes, 2))
