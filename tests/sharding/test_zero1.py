"""ZeRO-1: equal to one process and to PyTorch's, states on their owner alone, traffic to the byte, what it refuses."""

from __future__ import annotations

import re

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.collectives import ring, traffic
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.sharding import ZeroRedundancyOptimizer
from dtcourse.sharding.partition import assign_owners, by_turns, in_buckets
from dtcourse.verify import CASES, compare
from tests.turns import taking_turns

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


@pytest.mark.parametrize("world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/sharding/")])
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


# --- memory and traffic ------------------------------------------------------------------------------------------


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
    buckets = [b.buffer().numel() for b in ddp.reducer.buckets] if ddp else []
    elements = [sum(p.numel() for p in optimizer.owned(r)) for r in range(optimizer.world_size)]
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    return states, elements, sent, buckets, gradients


@pytest.mark.parametrize("world_size", [3, *taking_turns(2, 4, about="dtcourse/sharding/")])
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
                ring.broadcast_volume(elements[k], world_size, rank, k).elements
                for k in range(world_size)
            )
            assert sent["broadcast"] == 4 * spread == 4 * (n - elements[(rank + 1) % world_size])
            if way == "ddp":
                reduced = sum(ring.all_reduce_volume(b, world_size, rank).elements for b in buckets)
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
    owners = assign_owners(sizes, ranks)
    load = [sum(s for s, o in zip(sizes, owners, strict=True) if o == r) for r in range(ranks)]
    assert sum(load) == sum(sizes)
    # What greedy dealing promises: the fullest was the emptiest before it got its last (so one of the larger ones).
    assert max(load) <= sum(sizes) / ranks + max(sizes, default=0) * (1 - 1 / ranks)
    assert assign_owners(sizes, ranks) == owners


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), max_size=12), st.integers(1, 3), st.integers(4, 60))
def test_buckets_hold_everything_once_and_keep_to_their_size(sizes, ranks, cap):
    tensors = [torch.empty(n) for n in sizes]
    owner = dict(zip(tensors, assign_owners(sizes, ranks), strict=True))
    buckets = in_buckets(tensors, owner.__getitem__, cap)
    assert sorted(id(t) for b in buckets for t in b.parameters()) == sorted(map(id, tensors))
    for bucket in buckets:
        assert bucket.nbytes <= cap or len(bucket.parameters()) == 1
        assert {owner[t] for t in bucket.parameters()} == {bucket.owner}
        flat = bucket.empty().fill_(1.0)
        assert [v.shape for v in bucket.views(flat)] == [t.shape for t in bucket.parameters()]
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


# --- mistakes ----------------------------------------------------------------------------------------------------


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
    "models": r"rank 0 has parameter 0 of group 0 \[4, 3\] float32, rank 1 has .* \[5, 3\] float32",
    "LBFGS": r"LBFGS looks at all parameters at once",
    "empty": r"empty parameter list",
    "moved": r"parameter 0 was torch.float32 on cpu when the optimizer was built, and is torch.float64",
    "asked too early": r"call consolidate_state_dict\(to=\d\) on all ranks first",
    "no such rank": r"no rank 2 in a group of 2",
    "later group": r"rank 0 has .* \[2\] float32, rank 1 has .* \[3\] float32",
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


# --- other optimizers, frozen parameters, uneven inputs ----------------------------------------------------------


class NoClosure(torch.optim.SGD):
    def step(self):
        return super().step()


class Scaled(torch.optim.SGD):
    def step(self, closure=None, *, scale=1.0):
        loss = super().step(closure)
        for group in self.param_groups:
            for p in group["params"]:
                p.data.mul_(scale)
        return loss


def test_optimizers_whose_step_takes_no_closure_or_more():
    def step():
        out = []
        for zero in (ZeroRedundancyOptimizer, TorchZero, lambda p, kind, **o: kind(p, **o)):
            torch.manual_seed(0)
            model = nn.Linear(3, 2)

            def closure(model=model):
                with torch.enable_grad():
                    loss = model(torch.ones(1, 3)).sum()
                model.zero_grad()
                loss.backward()
                return loss.item()

            first = closure()
            zero(model.parameters(), NoClosure, lr=0.1).step()
            scaled = zero(model.parameters(), Scaled, lr=0.1)
            scaled.step(scale=2.0)
            loss = scaled.step(closure, scale=0.5)
            out.append((first, loss, named(model)))
        return out

    for ours, theirs, truth in launch(step, 2):
        assert ours[:2] == theirs[:2] == truth[:2]
        assert ours[1] is not None
        compare(ours[2], truth[2], what="parameter")


class Adapted(nn.Module):
    """A large frozen body, and small trained layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.ModuleList(nn.Linear(9, 9, bias=False) for _ in range(4))
        self.trained = nn.ModuleList(nn.Linear(9, n, bias=False) for n in (9, 4, 5))
        self.body.requires_grad_(False)

    def forward(self, x):
        for layer in (*self.body, *self.trained[:1]):
            x = torch.tanh(layer(x))
        return self.trained[1](x).square().mean() + self.trained[2](x).mean()


def test_frozen_parameters_are_dealt_out_apart():
    """They weigh nothing while they are frozen, and are even over the ranks when they are trained later."""

    def step():
        model = Adapted()
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)
        frozen = [[p.numel() for p in optimizer.owned(r) if not p.requires_grad] for r in range(2)]
        trained = [[p.numel() for p in optimizer.owned(r) if p.requires_grad] for r in range(2)]
        return frozen, trained

    for frozen, trained in launch(step, 2):
        assert frozen == [[81, 81], [81, 81]]
        assert [sum(t) for t in trained] == [81, 81]


def freeze_and_unfreeze(zero, to_none):
    """Two steps, the body unfrozen, two more, a trained layer and a part of the body frozen, two more."""
    model = Adapted()
    make, options = torch.optim.AdamW, {"lr": 0.02, "weight_decay": 0.5, "eps": 1e-3}
    if zero:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), make, **options)
    else:
        optimizer = make(model.parameters(), **options)
    rank, size = (dist.get_rank(), dist.get_world_size()) if zero else (0, 1)
    sent = []
    for step in range(6):
        if step == 2:
            model.body.requires_grad_(True)
        if step == 4:
            model.body[:3].requires_grad_(False)
            model.trained[0].requires_grad_(False)
        x = torch.randn(SAMPLES, 9, generator=torch.Generator().manual_seed(step)).chunk(size)[rank]
        optimizer.zero_grad(set_to_none=to_none)
        model(x).backward()
        with traffic.counting() as counted:
            if zero:
                optimizer.reduce_gradients()
            optimizer.step()
        sent.append(counted.bytes_sent(operation="broadcast"))
    return named(model), sent


@pytest.mark.parametrize("to_none", [True, False])
def test_frozen_and_unfrozen_on_the_way(to_none):
    """A gradient that is left behind (set_to_none=False) goes on changing a parameter: on every rank."""
    expected, _ = freeze_and_unfreeze(zero=False, to_none=to_none)
    run = launch(freeze_and_unfreeze, 2, True, to_none, backend="ring")
    for got, _ in run:
        compare(got, expected, 2e-5, "parameter")
        assert all(torch.equal(got[name], run[0][0][name]) for name in got)
    sent = [sum(each) for each in zip(*(sent for _, sent in run), strict=True)]
    assert sent[:2] == [4 * 162] * 2, "what is frozen from the start is not sent"
    assert sent[2:] == [4 * (162 + 4 * 81)] * 4


def uneven(ours, by_initial):
    """Rank r has r + 1 batches, as DDP's own test; steps by ZeRO-1, with momentum."""
    model = CASES["mlp"].build(0)
    wrapped = (DistributedDataParallel if ours else TorchDDP)(model)
    zero = ZeroRedundancyOptimizer if ours else TorchZero
    optimizer = zero(wrapped.parameters(), optimizer_class=torch.optim.AdamW, lr=0.02, eps=1e-3)
    with Join([wrapped, optimizer], divide_by_initial_world_size=by_initial):
        for i in range(dist.get_rank() + 1):
            x, y = CASES["mlp"].batch(4, 10 * dist.get_rank() + i)
            optimizer.zero_grad()
            with wrapped.no_sync():
                (CASES["mlp"].loss(wrapped(x[:2]), y[:2]) / 2).backward()
            (CASES["mlp"].loss(wrapped(x[2:]), y[2:]) / 2).backward()
            optimizer.step()
    return named(model)


def uneven_alone(ranks, by_initial):
    """The same in one process: in step i the ranks from i on have data."""
    model, case = CASES["mlp"].build(0), CASES["mlp"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, eps=1e-3)
    for i in range(ranks):
        optimizer.zero_grad()
        for rank in range(i, ranks):
            x, y = case.batch(4, 10 * rank + i)
            (case.loss(model(x), y) / (ranks if by_initial else ranks - i)).backward()
        optimizer.step()
    return named(model)


@pytest.mark.parametrize("by_initial", [True, False])
def test_uneven_inputs_join(by_initial):
    """The owner of a third of the parameters runs out of data first, and goes on updating them for the others."""
    expected = uneven_alone(3, by_initial)
    for got in launch(uneven, 3, True, by_initial):
        compare(got, expected, 2e-5, "parameter")


def join_mistake(which):
    model = nn.Linear(3, 2)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    wrapped = DistributedDataParallel(model)
    if which == "not averaged":
        with Join([DistributedDataParallel(nn.Linear(3, 2)), optimizer]):
            optimizer.reduce_gradients()
    if which == "order":
        with Join([optimizer, wrapped]):
            wrapped(torch.ones(1, 3)).sum().backward()
            optimizer.step()
    if which == "averaged twice":
        plain = nn.Linear(3, 2)
        optimizer = ZeroRedundancyOptimizer(plain.parameters(), torch.optim.SGD, lr=0.1)
        for _ in (True, False):
            optimizer.zero_grad(set_to_none=False)
            plain(torch.ones(1, 3)).sum().backward()
            optimizer.reduce_gradients()  # and no step: an overflow, say
        optimizer.step()
        plain(torch.ones(1, 3)).sum().backward()
        optimizer.reduce_gradients()  # the step has taken what was there: as in the first one
        plain(torch.ones(1, 3)).sum().backward()
        optimizer.reduce_gradients()


JOIN_MISTAKES = {
    "averaged twice": r"gradients were added to a mean.*reduce_gradients\(\) once before step\(\)",
    "not averaged": r"inside Join.*wrap the model in DistributedDataParallel",
    "order": r"pass Join\(\[model, optimizer\]\)",
}


@pytest.mark.parametrize("which", JOIN_MISTAKES)
def test_mistakes_with_join_and_with_means(which):
    for found in launch(all_mistakes, 2, join_mistake, [which]):
        assert re.search(JOIN_MISTAKES[which], found.get(which, "no error")), found
