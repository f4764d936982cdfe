"""A mixture whose experts are given out and cut as well: who goes where, how much is sent, and what is refused."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import expert_parallel as ep
from dtcourse import launch
from dtcourse import tensor_parallel as tp
from dtcourse.collectives import ring, traffic
from dtcourse.models import Experts, MoE, TopKGate
from dtcourse.parameters.whole import full_state_dict
from dtcourse.verify import compare
from tests.expert_parallel.mixtures import D, E, loss_of, mixture, tokens
from tests.expert_parallel.mixtures import alone as one_process


def grid(shape):
    return init_device_mesh("cpu", shape, mesh_dim_names=("expert", "tensor"))


def cut_mixture(moe, mesh):
    tp.parallelize(moe, {"experts": tp.ExpertsParallel()}, mesh["tensor"])
    return ep.expert_parallel(moe, mesh["expert"])


def uneven(options, lengths):
    """Gradients and state of a mixture that ranks have so many tokens for."""
    mesh = grid((2, 2))
    moe = cut_mixture(mixture(**options), mesh)
    parts = tokens(lengths)
    loss = loss_of(moe, parts[mesh["expert"].get_local_rank()], 2 / sum(lengths))
    loss.backward()
    ep.average_gradients(moe, mesh["expert"])
    return ep.full_gradients(moe), moe.counts_E, full_state_dict(moe)


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"gate": "switch", "kind": "swiglu", "shared": True, "balancing": 1.0}, (7, 0)),
        ({"gate": "expert choice"}, (5, 9)),
        ({"capacity_factor": 0.7, "z": 0.1}, (9, 2)),
    ],
    ids=["a rank without tokens", "expert choice", "capacity"],
)
def test_gates_choose_for_all_tokens(options, lengths):
    options = options | {"d_ff": 6}
    plain = mixture(**options)
    right = one_process(plain, tokens(lengths))
    del right["x"], right["loss"]
    for gradients, counts_E, state in launch(uneven, 4, options, lengths):
        compare(gradients, right, 1e-12, "gradient", norm=2)
        assert torch.equal(counts_E, plain.counts_E)
        compare(state, plain.state_dict(), 0.0, "value")


def noisy():
    """Noise of a gate's is drawn on each rank of its own tokens, and alike on the tensor ranks."""
    mesh = grid((2, 2))
    torch.manual_seed(torch.distributed.get_rank())
    gate = TopKGate(D, E, 2, noise=True)
    nn.init.ones_(gate.noise.weight)
    moe = cut_mixture(MoE(gate, Experts(E, D, 6)), mesh)
    y = moe(tokens((8, 8))[mesh["expert"].get_local_rank()].float())
    return y.detach(), moe.counts_E


def test_noise_is_the_same_on_tensor_ranks():
    outputs, counts = zip(*launch(noisy, 4), strict=True)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[2], outputs[3])
    assert all(torch.equal(c, counts[0]) for c in counts)


def messages(kind):
    """One forward and one backward: rows that this rank's experts got, and the parameters that it has of them."""
    mesh = grid((2, 2))
    moe = mixture(kind=kind, d_ff=6, gate="switch")
    tp.parallelize(moe, {"experts": tp.ExpertsParallel()}, mesh["tensor"])
    ep.expert_parallel(moe, mesh["expert"], scope="rank")  # losses send nothing then
    arrived = []
    moe.experts.mine.register_forward_pre_hook(lambda _, args: arrived.append(len(args[0])))
    x = tokens((9, 5))[mesh["expert"].get_local_rank()].requires_grad_()
    with traffic.phase("forward"):
        y = moe(x)
    with traffic.phase("backward"):
        y.sum().backward()
    return arrived[0], sum(p.numel() for p in moe.experts.parameters())


@pytest.mark.parametrize("kind", ["gelu", "swiglu"])
def test_one_all_reduce_each_way_of_the_rows_that_arrive(kind):
    run = launch(messages, 4, kind, backend="ring", record=True)
    columns = (2 if kind == "swiglu" else 1) * (D + 1)
    assert sum(rows for rows, _ in run) == 2 * (9 + 5), "each token once, on both tensor ranks"
    for rank, (rows, held) in enumerate(run):
        each = ring.all_reduce_volume(rows * D, 2, rank % 2).elements * 8
        for phase in ("forward", "backward"):
            assert run.traffic.bytes_sent(rank, "all_reduce", phase) == each
        # Of E / 2 experts half of each matrix, half the biases before it, and the last one's bias whole.
        assert held == E // 2 * ((columns + D) * 6 // 2 + D)


# --- refused ----------------------------------------------------------------------------------------------------------


class WithScales(Experts):
    """Experts with a linear layer that has an expert in each row: both techniques want to cut dim 0 of it."""

    def __init__(self):
        super().__init__(E, D, 6)
        self.scales = nn.Linear(D, E, bias=False)


COLUMNS = {"experts.scales": tp.ColwiseParallel()}


def twice(first):
    mesh, moe = grid((2, 2)), MoE(TopKGate(D, E, 2), WithScales())
    before = {n: p.clone() for n, p in moe.named_parameters()}
    if first == "tensor":
        tp.parallelize(moe, COLUMNS, mesh["tensor"])
        with pytest.raises(ValueError) as refused:
            ep.expert_parallel(moe, mesh["expert"])
        assert not isinstance(moe.experts, ep.ParallelExperts)
    else:
        ep.expert_parallel(moe, mesh["expert"])
        held = {n: p.clone() for n, p in moe.named_parameters()}
        with pytest.raises(ValueError) as refused:
            tp.parallelize(moe, {"experts.mine.scales": tp.ColwiseParallel()}, mesh["tensor"])
        for name, parameter in moe.named_parameters():
            assert torch.equal(parameter, held[name]), name
        assert len(before) == len(held)
    return str(refused.value)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (
            "tensor",
            r"expert_parallel would cut the model.experts.scales.weight into 2 along dim 0, which tensor "
            r"parallelism has cut already: 8 into 2, over ranks (0, 1|2, 3)\.",
        ),
        (
            "expert",
            r"parallelize would cut experts.mine.scales.weight into 2 along dim 0, which expert parallelism has cut "
            r"already: 8 into 2, over ranks (0, 2|1, 3)\.",
        ),
    ],
)
def test_a_dim_that_both_want_is_refused(first, message):
    for said in launch(twice, 4, first):
        assert re.match(message, said), said


def wrong_experts(case):
    mesh = grid((1, 2))
    experts = nn.Linear(2, 2) if case == "no experts" else Experts(E, D, 5)
    tp.parallelize(
        nn.ModuleDict({"experts": experts}), {"experts": tp.ExpertsParallel()}, mesh["tensor"]
    )


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("width", "the width of the experts of experts, 5, cannot be cut over 2 ranks; 1, 5 ranks would do"),
        ("no experts", "ExpertsParallel is for experts with hidden, .*experts, a Linear, has no hidden, product"),
    ],
)  # fmt: skip
def test_what_the_style_cannot_cut_is_refused(case, message):
    with pytest.raises(Exception, match=message):
        launch(wrong_experts, 2, case)
