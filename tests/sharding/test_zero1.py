"""ZeRO-1: equal to one process and to PyTorch's, states on their owner alone, traffic to the byte, what it refuses."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.collectives import ring, traffic
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.sharding import ZeroRedundancyOptimizer
from dtcourse.sharding.partition import assign, by_turns, in_buckets
from dtcourse.verify import CASES, compare

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "eps": 1e-4}),
}
SAMPLES = 24


def named(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def train(case, model, optimizer, forward=None, after_backward=lambda: None, steps=4, first=0):
    """`steps` steps on this rank's part of the batch; the whole batch where there is one rank."""
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    for step in range(first, first + steps):
        x, y = (t.chunk(size)[rank] for t in case.batch(SAMPLES, step))
        optimizer.zero_grad()
        case.loss((forward or model)(x), y).backward()
        after_backward()
        optimizer.step()
    return named(model)


def plain(case_name, kind, steps=4):
    case, (make, options) = CASES[case_name], OPTIMIZERS[kind]
    model = case.build(0)
    return train(case, model, make(model.parameters(), **options), steps=steps)


def three_ways(cases, kinds):
    out = {}
    for name in cases:
        for kind in kinds:
            case, (make, options) = CASES[name], OPTIMIZERS[kind]
            for way in ("over DDP", "reduced to owners", "PyTorch's"):
                model = case.build(0)
                zero = TorchZero if way == "PyTorch's" else ZeroRedundancyOptimizer
                optimizer = zero(model.parameters(), optimizer_class=make, **options)
                forward, after = model, lambda: None
                if way == "reduced to owners":
                    after = optimizer.reduce_gradients
                else:
                    ddp = TorchDDP if way == "PyTorch's" else DistributedDataParallel
                    forward = ddp(model)
                out[name, kind, way] = train(case, model, optimizer, forward, after)
    return out


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_parameters_equal_one_process_and_pytorchs_own(world_size):
    cases = ("mlp", "tied", "frozen") if world_size == 3 else ("mlp",)
    run = launch(three_ways, world_size, cases, list(OPTIMIZERS))
    for rank in range(world_size):
        for (name, kind, way), got in run[rank].items():
            what = f"{name}, {kind}, {way}, rank {rank}: parameter"
            compare(got, plain(name, kind), tolerance=2e-5, what=what)
            if way != "PyTorch's":
                compare(got, run[0][name, kind, "PyTorch's"], tolerance=2e-5, what=what)
            same = run[0][name, kind, way]
            assert all(torch.equal(got[n], same[n]) for n in got), f"{what}s differ between ranks"


def grouped(model):
    """Two groups with their own options, a third added later; a frozen parameter and a schedule."""
    weights = [p for n, p in model.named_parameters() if "weight" in n]
    biases = [p for n, p in model.named_parameters() if "bias" in n]
    return [
        {"params": weights[:-1], "weight_decay": 0.1},
        {"params": biases, "lr": 0.03, "weight_decay": 0.0},
    ], {"params": weights[-1:], "lr": 0.02}


def train_grouped(zero):
    case = CASES["mlp"]
    model = case.build(0)
    groups, later = grouped(model)
    if zero:
        optimizer = ZeroRedundancyOptimizer(groups, torch.optim.AdamW, lr=0.01, eps=1e-4)
        after = optimizer.reduce_gradients
    else:
        optimizer, after = torch.optim.AdamW(groups, lr=0.01, eps=1e-4), lambda: None
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    train(case, model, optimizer, after_backward=after, steps=1)
    schedule.step()
    optimizer.add_param_group(later)
    train(case, model, optimizer, after_backward=after, steps=2, first=1)
    return named(model), [group["lr"] for group in optimizer.param_groups]


def test_groups_later_groups_and_schedules():
    expected, rates = train_grouped(zero=False)
    for got, own_rates in launch(train_grouped, 3, zero=True):
        compare(got, expected, tolerance=2e-5, what="parameter")
        assert own_rates == rates == [0.005, 0.015, 0.02]


# --- state dicts --------------------------------------------------------------------------------------------------


def train_and_consolidate(steps, to, loaded=None, first=0, parameters=None):
    case, (make, options) = CASES["mlp"], OPTIMIZERS["AdamW"]
    model = case.build(0)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), make, **options)
    if loaded is not None:
        model.load_state_dict(parameters)
        optimizer.load_state_dict(loaded)
    train(
        case, model, optimizer, after_backward=optimizer.reduce_gradients, steps=steps, first=first
    )
    optimizer.consolidate_state_dict(to=to)
    state = optimizer.state_dict() if dist.get_rank() == to else None
    own = sum(len(s) > 0 for s in optimizer.state.values())
    return state, model.state_dict(), own


def test_state_dict_loads_on_another_world_size_and_into_a_plain_optimizer():
    expected = plain("mlp", "AdamW", steps=5)
    run = launch(train_and_consolidate, 3, 2, to=1)
    state, parameters, _ = run[1]
    assert sum(own for _, _, own in run) == len(state["state"]) == 6, "each state on one rank"
    second, more, _ = launch(train_and_consolidate, 2, 1, 0, state, 2, parameters)[0]

    case, (make, options) = CASES["mlp"], OPTIMIZERS["AdamW"]
    model = case.build(7)
    model.load_state_dict(more)
    optimizer = make(model.parameters(), lr=123.0)
    optimizer.load_state_dict(second)
    assert optimizer.param_groups[0]["lr"] == options["lr"]
    compare(train(case, model, optimizer, steps=2, first=3), expected, 2e-5, "parameter")

    # And the other way: a plain optimizer's state is taken by ranks.
    model = case.build(0)
    optimizer = make(model.parameters(), **options)
    train(case, model, optimizer, steps=2)
    run = launch(train_and_consolidate, 2, 3, 0, optimizer.state_dict(), 2, model.state_dict())
    for _, got, _ in run:
        compare(got, expected, 2e-5, "parameter")


# --- memory and traffic ------------------------------------------------------------------------------------------------


def states_and_volume(way):
    """Bytes of this rank's Adam states, the elements it owns, and the bytes it sent in one step, by operation."""
    case = CASES["mlp"]
    model = case.build(0)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.0002) if way == "ddp" else None
    after = (lambda: None) if ddp else optimizer.reduce_gradients
    train(case, model, optimizer, ddp, after, steps=2)  # DDP plans its buckets after the first
    with traffic.counting() as counted:
        train(case, model, optimizer, ddp, after, steps=1)
    states = sum(
        v.nbytes for s in optimizer.state.values() for n, v in s.items() if n.startswith("exp_avg")
    )
    sent = {name: counted.bytes_sent(operation=name) for name in ("all_reduce", "reduce", "broadcast")}  # fmt: skip
    buckets = [b.buffer().numel() for b in ddp._buckets] if ddp else []
    elements = [sum(p.numel() for p in optimizer.owned(r)) for r in range(optimizer.world_size)]
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return states, elements, sent, buckets, gradients


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_states_and_traffic_are_the_formula_to_the_byte(world_size):
    n = sum(p.numel() for p in CASES["mlp"].build(0).parameters())
    volume = {}
    for way in ("ddp", "reduce"):
        run = launch(states_and_volume, world_size, way, backend="ring")
        total = 0
        for rank, (states, elements, sent, buckets, gradients) in enumerate(run):
            assert sum(elements) == n
            assert states == 8 * elements[rank]
            # The last rank of each owner's chain passes nothing on.
            spread = sum(
                ring.broadcast_sent(elements[k], world_size, rank, k).elements
                for k in range(world_size)
            )
            assert sent["broadcast"] == 4 * spread == 4 * (n - elements[(rank + 1) % world_size])
            if way == "ddp":
                reduced = sum(ring.all_reduce_sent(b, world_size, rank).elements for b in buckets)
                assert (sent["all_reduce"], sent["reduce"]) == (4 * reduced, 0)
                assert gradients == 4 * n
            else:
                reduced = n - elements[rank]
                assert (sent["all_reduce"], sent["reduce"]) == (0, 4 * reduced)
                assert gradients == 4 * elements[rank]
            total += sum(sent.values())
        volume[way] = total
    ddp_alone = 4 * 2 * (world_size - 1) * n
    assert volume == {"ddp": 1.5 * ddp_alone, "reduce": ddp_alone}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 5))
def test_the_deal_is_balanced(sizes, ranks):
    owners = assign(sizes, ranks)
    load = [sum(s for s, o in zip(sizes, owners, strict=True) if o == r) for r in range(ranks)]
    assert sum(load) == sum(sizes)
    # What greedy dealing promises: the fullest was the emptiest before it got its last (so one of the larger ones).
    assert max(load) <= sum(sizes) / ranks + max(sizes, default=0) * (1 - 1 / ranks)
    assert assign(sizes, ranks) == owners


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 3), st.integers(4, 60))
def test_buckets_hold_everything_once_and_keep_to_their_size(sizes, ranks, cap):
    tensors = [torch.empty(n) for n in sizes]
    owner = dict(zip(tensors, assign(sizes, ranks), strict=True))
    buckets = in_buckets(tensors, owner.__getitem__, cap)
    assert sorted(id(t) for b in buckets for t in b.tensors) == sorted(map(id, tensors))
    for bucket in buckets:
        assert bucket.nbytes <= cap or len(bucket.tensors) == 1
        assert {owner[t] for t in bucket.tensors} == {bucket.owner}
        flat = bucket.empty().fill_(1.0)
        assert [v.shape for v in bucket.views(flat)] == [t.shape for t in bucket.tensors]
    assert sorted(map(id, by_turns(buckets, ranks))) == sorted(map(id, buckets))


def test_parameters_are_dealt_out_as_pytorch_does():
    def step():
        model = nn.Sequential(*[nn.Linear(a, b) for a, b in ((5, 9), (9, 2), (2, 30), (30, 4))])
        groups = [
            {"params": list(model[:2].parameters())},
            {"params": list(model[2:].parameters())},
        ]
        ours = ZeroRedundancyOptimizer(groups, torch.optim.SGD, lr=0.1)
        theirs = TorchZero(groups, torch.optim.SGD, lr=0.1)
        return [theirs._param_to_rank[p] for p in ours.owner], list(ours.owner.values())

    theirs, ours = launch(step, 3)[0]
    assert ours == theirs


# --- mistakes -----------------------------------------------------------------------------------------------------------


def test_more_ranks_than_parameters():
    def step():
        torch.manual_seed(0)
        model = nn.Linear(3, 1, bias=False)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.5)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.reduce_gradients()
        optimizer.step()
        optimizer.consolidate_state_dict()
        return model.weight.detach().clone(), len(optimizer.owned())

    run = launch(step, 3)
    assert [owned for _, owned in run] == [1, 0, 0]
    assert all(torch.equal(weight, run[0][0]) for weight, _ in run)


def mistake(which):
    model = nn.Sequential(nn.Linear(3, 4 + (which == "models" and dist.get_rank() == 1)))
    make = torch.optim.LBFGS if which == "LBFGS" else torch.optim.Adam
    parameters = [] if which == "empty" else model.parameters()
    optimizer = ZeroRedundancyOptimizer(parameters, make, lr=0.1)
    if which == "moved":
        model.double()
        optimizer.step()
    if which == "asked too early":
        optimizer.state_dict()
    if which == "no such rank":
        optimizer.consolidate_state_dict(to=2)
    if which == "later group":
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2 + dist.get_rank()))]})


def all_mistakes(mistake, kinds):
    """The error that each mistake raises on this rank, in one launch."""
    found = {}
    for which in kinds:
        try:
            mistake(which)
        except (ValueError, RuntimeError) as error:
            found[which] = str(error)
    return found


MISTAKES = {
    "models": r"parameter 0 of group 0 is \[4, 3\] float32 on rank 0, \[5, 3\] float32 on rank 1",
    "LBFGS": r"LBFGS looks at all parameters at once",
    "empty": r"empty parameter list",
    "moved": r"parameter 0 was torch.float32 on cpu when the optimizer was built, and is torch.float64",
    "asked too early": r"call consolidate_state_dict\(to=\d\) on all ranks first",
    "no such rank": r"no rank 2 in a group of 2",
    "later group": r"\[2\] float32 on rank 0, \[3\] float32 on rank 1",
}


def test_mistakes_are_explained_on_every_rank():
    for found in launch(all_mistakes, 2, mistake, list(MISTAKES)):
        for which, message in MISTAKES.items():
            assert re.search(message, found[which]), which


def test_another_models_state_is_refused_and_nothing_is_loaded():
    def step(state):
        model = nn.Linear(3, 2)
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        messages = []
        for wrong in state:
            try:
                optimizer.load_state_dict(wrong)
            except ValueError as error:
                messages.append(str(error))
        return messages, len(optimizer.state), optimizer.param_groups[0]["lr"]

    states = []
    for other in (nn.Linear(4, 2), nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))):
        optimizer = torch.optim.Adam(other.parameters(), lr=0.7)
        for p in other.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        states.append(optimizer.state_dict())
    for (shape, count), held, rate in launch(step, 2, states):
        assert (
            "exp_avg of parameter 0 is [2, 4] in the state dict, and the parameter [2, 3]" in shape
        )
        assert "the state dict is of 4 parameters, this optimizer has 2" in count
        assert (held, rate) == (0, 0.1)
