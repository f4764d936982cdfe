"""Gradients weighted by samples over what cuts a model: over the data axis one process, or refused with the reason."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn.functional import cross_entropy

from dtcourse import launch, sharding
from dtcourse import tensor_parallel as tp
from dtcourse.compression import CompressionState, TopK, compression_hook
from dtcourse.heterogeneous import WeightedDataParallel, places
from dtcourse.models import Transformer
from dtcourse.sequence_parallel import parallelize_sequence
from dtcourse.verify import compare
from tests.parameters.test_slices import (
    CONFIG,
    axes,
    batch,
    experts,
    fully_shard_first,
    piped,
    plain_steps,
    sgd,
    stages_of,
    tensor_parallel,
    zb_h1,
)

SHARES = [(1, 3), (4, 0), (3, 1)]  # of 4 sequences, on the two ranks of the data axis


def over(mesh, model):
    return WeightedDataParallel(model, mesh["data"].get_group())


REFUSED = {
    "WeightedDataParallel over experts": (experts, over, r"average_gradients\(model, mesh\)"),
    "WeightedDataParallel over full sharding": (
        fully_shard_first,
        lambda x, m: WeightedDataParallel(m, x["other"].get_group()),
        "mesh of two axes",
    ),
    "WeightedDataParallel over a pipeline": (
        stages_of,
        lambda x, m: over(x, piped(m, zb_h1(2, 2), x).module),
        "this is a pipeline's, of which each rank has stages of its own",
    ),
    "split backward under WeightedDataParallel": (
        lambda x: [over(x, one) for one in stages_of(x)],
        lambda x, m: piped(m, zb_h1(2, 2), x),
        "WeightedDataParallel reduces the gradients of each",
    ),
    "fully_shard over it": (
        lambda x: over(x, Transformer(CONFIG)),
        lambda x, m: sharding.fully_shard(m.module, mesh=x["other"]),
        "data-parallel wrapper already",
    ),
    "over the tensor axis": (
        tensor_parallel,
        lambda x, m: WeightedDataParallel(m, x["other"].get_group()),
        "slice, of tensor parallelism",
    ),
    "over all ranks": (tensor_parallel, lambda x, m: WeightedDataParallel(m), "hold different ones"),
}  # fmt: skip


def trained(mesh, sequence):
    model = tensor_parallel(mesh)
    if sequence:
        parallelize_sequence(model, mesh["other"])
    wrapped, optimizer, norms = over(mesh, model), sgd(model.parameters()), []
    for shares in SHARES:
        mine = list(places(shares)[mesh["data"].get_local_rank()])
        x, y = (one[mine] for one in batch())
        optimizer.zero_grad()
        with wrapped.step(len(mine)):
            if mine:
                wrapped.weigh(cross_entropy(wrapped(x).flatten(0, 1), y.flatten())).backward()
        norms.append(tp.clip_grad_norm(model, 0.5))
        optimizer.step()
    return tp.full_state_dict(model), torch.stack(norms).double()


# --- compressed, with error feedback -------------------------------------------------------------------------------

KEPT, RATIO = 3, 0.25  # of 12 numbers


def linear():
    generator = torch.Generator().manual_seed(0)
    model = torch.nn.Linear(6, 2, bias=False).double()
    weight = torch.randn(2, 6, dtype=torch.float64, generator=generator)
    model.load_state_dict({"weight": weight})
    return model, torch.randn(4, 6, dtype=torch.float64, generator=generator)


def compressed(mesh):
    model, x = linear()
    wrapped = over(mesh, model)
    compressor = TopK(RATIO, takes=torch.float64)
    state = CompressionState(compressor, mesh["data"].get_group())
    wrapped.register_comm_hook(state, compression_hook)
    optimizer = torch.optim.SGD(model.parameters(), 0.2)
    for shares in [*SHARES, *SHARES]:
        mine = list(places(shares)[mesh["data"].get_local_rank()])
        optimizer.zero_grad()
        with wrapped.step(len(mine)):
            if mine:
                wrapped.weigh(wrapped(x[mine]).square().mean()).backward()
        optimizer.step()
    return model.weight.detach()


def compressed_in_one_process():
    """Each rank sends the largest of its part of the whole batch's gradient and of what it has left out so far.

    A mean over the samples of both is the mean over two ranks of twice each one's part.
    """
    model, x = linear()
    left_out = [torch.zeros(12, dtype=torch.float64) for _ in range(2)]
    for shares in [*SHARES, *SHARES]:
        sent = torch.zeros(12, dtype=torch.float64)
        for rank, part in enumerate(places(shares)):
            model.zero_grad()
            (model(x[list(part)]).square().sum() / (2 * 4) * 2).backward()  # 4 samples of 2 numbers
            vector = model.weight.grad.flatten() + left_out[rank]
            largest = vector.abs().topk(KEPT).indices
            kept = torch.zeros_like(vector).index_copy(0, largest, vector[largest])
            left_out[rank] = vector - kept
            sent += kept / 2
        with torch.no_grad():
            model.weight -= 0.2 * sent.view(2, 6)
    return model.weight.detach()


def test_error_feedback_is_of_weighted_gradients(run):
    """A rank without samples in a step goes on sending what it has left out."""
    for *_, found in run:
        compare({"weight": found}, {"weight": compressed_in_one_process()}, 1e-12, "parameter")


# --- all in one launch ----------------------------------------------------------------------------------------------


def everything():
    mesh, said = axes(), {}
    for name, (build, wrong, _) in REFUSED.items():
        model = build(mesh)
        try:
            wrong(mesh, model)
            said[name] = "nothing"
        except ValueError as error:
            said[name] = str(error)
    return said, [trained(mesh, sequence) for sequence in (False, True)], compressed(mesh)


@pytest.fixture(scope="module")
def run():
    return launch(everything, 4)


def test_over_the_data_axis_it_is_one_process_or_refused(run):
    state, norms = plain_steps(CONFIG)
    assert min(norms) > 0.5, "clipping changes something"
    for said, both, _ in run:
        for found, theirs in both:
            compare(found, state, 1e-10, "parameter")
            assert torch.allclose(theirs, torch.stack(norms), rtol=1e-10)
        for name, (*_, words) in REFUSED.items():
            assert re.search(words, said[name], re.S), (name, said[name])
