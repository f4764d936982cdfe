"""DistributedDataParallel by hand: equal to one process and to PyTorch's, parameter by
parameter, and what it refuses."""

from __future__ import annotations

import re
from contextlib import nullcontext
from itertools import chain

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.data_parallel import (
    DistributedDataParallel,
    PerParameterDataParallel,
    average_gradients,
    broadcast_model,
)
from dtcourse.launch import RankFailure
from dtcourse.verify import CASES, compare, on_ranks, one_process
from tests.turns import taking_turns


def naive(model):
    broadcast_model(model)
    return model


WRAPPERS = {
    "naive": (naive, lambda m: average_gradients(m)),
    "per-parameter": (PerParameterDataParallel, lambda m: m.synchronize()),
    "ddp": (DistributedDataParallel, lambda m: None),
    "ddp, tiny buckets": (
        lambda m: DistributedDataParallel(m, bucket_cap_mb=0.0001),
        lambda m: None,
    ),
    "ddp, finding unused": (
        lambda m: DistributedDataParallel(m, find_unused_parameters=True),
        lambda m: None,
    ),
    "ddp, static graph": (
        lambda m: DistributedDataParallel(m, static_graph=True, bucket_cap_mb=0.0001),
        lambda m: None,
    ),
}


def train_all(cases, wrappers, micro_batches=1):
    """Every wrapper on every case, in one launch: a launch a combination would take a minute."""
    out = {}
    for case in cases:
        for name in wrappers:
            wrap, after = WRAPPERS[name]
            out[case, name] = on_ranks(
                wrap, CASES[case], micro_batches=micro_batches, after_backward=after
            )
    return out


@pytest.mark.parametrize("world_size", [1, 3, *taking_turns(2, 4, about="dtcourse/data_parallel/")])
def test_gradients_equal_one_process_on_the_whole_batch(world_size):
    run = launch(train_all, world_size, ["mlp", "tied", "frozen"], list(WRAPPERS))
    for case in ("mlp", "tied", "frozen"):
        truth = one_process(CASES[case])
        for rank in range(world_size):
            for name in WRAPPERS:
                steps = run[rank][case, name]
                for step, (got, expected) in enumerate(
                    zip(steps.gradients, truth.gradients, strict=True)
                ):
                    compare(got, expected, what=f"{name}, step {step}, rank {rank}: gradient")


@pytest.mark.parametrize("micro_batches", [2, 8])
def test_accumulation_with_no_sync_is_one_large_batch(micro_batches):
    world_size = 3  # 24 samples in 3 ranks times 8 micro-batches
    run = launch(
        train_all, world_size, ["mlp", "tied"], ["ddp", "ddp, tiny buckets"], micro_batches
    )
    for (case, name), steps in run[world_size - 1].items():
        truth = one_process(CASES[case])
        for got, expected in zip(steps.gradients, truth.gradients, strict=True):
            compare(got, expected, what=name)


def test_forward_decides_whether_backward_averages_as_in_pytorch():
    """All four ways to put forward and backward inside or outside no_sync()."""

    def gradients(kind):
        seen = []
        for quiet_forward in (False, True):
            for quiet_backward in (False, True):
                torch.manual_seed(0)
                model = kind(nn.Linear(2, 2))
                with model.no_sync() if quiet_forward else nullcontext():
                    loss = model(torch.full((1, 2), dist.get_rank() + 1.0)).sum()
                with model.no_sync() if quiet_backward else nullcontext():
                    loss.backward()
                seen.append(model.module.weight.grad[0, 0].item())
        return seen

    mine, theirs = launch(lambda: (gradients(DistributedDataParallel), gradients(TorchDDP)), 2)[1]
    assert mine == theirs == [1.5, 1.5, 2.0, 2.0]


def test_bit_for_bit_pytorchs_own():
    def both():
        mine = on_ranks(DistributedDataParallel, CASES["mlp"])
        theirs = on_ranks(TorchDDP, CASES["mlp"])
        return mine, theirs

    # Two addends have one sum. With more ranks gloo's order of adding depends on where in a bucket a value lies.
    for mine, theirs in launch(both, 2):
        for a, b in zip(mine.gradients, theirs.gradients, strict=True):
            assert all(torch.equal(a[n], b[n]) for n in a)
    for mine, theirs in launch(both, 4):
        for a, b in zip(mine.gradients, theirs.gradients, strict=True):
            compare(a, b, tolerance=1e-6)


@pytest.mark.parametrize("option", ["find_unused_parameters", "static_graph"])
def test_unused_parameters_are_found_and_keep_no_gradient(option):
    def both():
        mine = on_ranks(lambda m: DistributedDataParallel(m, **{option: True}), CASES["unused"])
        theirs = on_ranks(lambda m: TorchDDP(m, **{option: True}), CASES["unused"])
        return mine.gradients, theirs.gradients

    truth = one_process(CASES["unused"])
    for mine, theirs in launch(both, 2):
        for a, b, c in zip(mine, theirs, truth.gradients, strict=True):
            assert a["forgotten.weight"] is None and b["forgotten.weight"] is None
            compare(a, b)
            compare(a, c)


def test_a_static_graph_is_looked_at_once():
    """All-reduces in each step: a bucket, and with find_unused_parameters the flags; static ones in the first alone."""

    def calls(**options):
        model = DistributedDataParallel(CASES["unused"].build(0), **options)
        counts = []
        for i in range(3):
            with traffic.counting() as counted:
                x, y = CASES["unused"].batch(4, i)
                CASES["unused"].loss(model(x), y).backward()
            counts.append(counted.calls(operation="all_reduce"))
        return counts

    def step():
        return calls(find_unused_parameters=True), calls(static_graph=True)

    assert launch(step, 2, backend="ring")[1] == ([2, 2, 2], [2, 1, 1])


class Wandering(nn.Module):
    """Uses the layers that it is told to."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.always, self.sometimes = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, further):
        x = self.always(x)
        return self.sometimes(x) if further else x


def wander(plan, kind=DistributedDataParallel, **options):
    """The gradient of `sometimes` after each step; plan[step][rank]: whether the rank uses that layer."""
    model = kind(Wandering(), **options)
    gradients = []
    for step in plan:
        model.zero_grad()
        model(torch.ones(2, 3), step[dist.get_rank()]).sum().backward()
        gradient = model.module.sometimes.bias.grad
        gradients.append(None if gradient is None else gradient.clone())
    return gradients


def test_a_parameter_used_on_one_rank_only_in_several_steps():
    """Rank 1 has all gradients and rank 0 has not: they must agree on when buckets are built again."""

    def step():
        same, moving = (
            [(False, True)] * 4,
            [(False, True), (True, False), (False, False), (True, True)],
        )
        out = [wander(same, find_unused_parameters=True), wander(same, static_graph=True)]
        theirs = [
            wander(same, TorchDDP, find_unused_parameters=True),
            wander(same, TorchDDP, static_graph=True),
        ]
        out.append(wander(moving, find_unused_parameters=True))
        theirs.append(wander(moving, TorchDDP, find_unused_parameters=True))
        return out, theirs  # fmt: skip

    for mine, theirs in launch(step, 2):
        for a, b in zip(chain(*mine), chain(*theirs), strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.equal(a, b)
        assert torch.equal(mine[0][3], torch.ones(3))  # 2 samples on one of two ranks
        assert mine[2][2] is None  # used nowhere


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ([(False, False), (True, True)], r"sometimes.bias got a gradient.*static_graph=True"),
        (
            [(True, True), (False, False)],
            r"no gradient to sometimes.weight, sometimes.bias.*static",
        ),
    ],
)
def test_a_graph_that_was_promised_to_be_static_and_changes(plan, message):
    with pytest.raises(RankFailure, match=message):
        launch(wander, 2, plan, static_graph=True)


def test_what_forward_hides_is_no_silent_error():
    class Hides(Wandering):
        def forward(self, x):
            self.hidden = self.sometimes(x)
            return self.always(x)

    def step():
        model = DistributedDataParallel(Hides(), find_unused_parameters=True)
        (model(torch.ones(1, 3)) + model.module.hidden).sum().backward()

    with pytest.raises(RankFailure, match="Forward must return all that the loss depends on"):
        launch(step, 2)


def test_buckets_of_a_static_graph_are_built_again_with_what_is_unused_first():
    def step():
        model = DistributedDataParallel(
            CASES["unused"].build(0), bucket_cap_mb=0.00001, static_graph=True
        )
        for i in range(2):
            x, y = CASES["unused"].batch(4, i)
            CASES["unused"].loss(model(x), y).backward()
        return [
            model.reducer.names[p].split(".")[0]
            for b in model.reducer.buckets
            for p in b.parameters()
        ]

    order = launch(step, 2)[0]
    assert order == ["forgotten"] * 2 + ["out"] * 2 + ["used"] * 2


def test_an_unused_parameter_is_an_error_that_names_it():
    with pytest.raises(
        RankFailure,
        match=r"no gradient to forgotten.weight, forgotten.bias.*find_unused_parameters",
    ):
        launch(lambda: on_ranks(DistributedDataParallel, CASES["unused"]).losses, 2)


def test_a_parameter_used_on_one_rank_only():
    """Its gradient is the mean with zeros; without find_unused_parameters the rank that lacks it says so."""

    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.always, self.sometimes = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            x = self.always(x)
            return self.sometimes(x) if dist.get_rank() == 1 else x

    def step(find):
        model = DistributedDataParallel(Sometimes(), find_unused_parameters=find)
        model(torch.ones(2, 3)).sum().backward()
        return model.module.sometimes.bias.grad.clone()

    for gradient in launch(step, 2, True):
        # 2 samples on one rank, none on the other
        assert torch.allclose(gradient, torch.full((3,), 1.0))
    with pytest.raises(RankFailure, match=r"no gradient to sometimes.weight, sometimes.bias"):
        launch(step, 2, False)


def test_pytorchs_hooks_run_on_our_buckets():
    for hook in ("allreduce_hook", "fp16_compress_hook"):
        for mine, theirs in launch(hooked, 2, hook):
            for a, b in zip(mine, theirs, strict=True):
                assert all(torch.equal(a[n], b[n]) for n in a), hook
    for mine, theirs in launch(hooked, 2, "powersgd"):
        for a, b in zip(mine[:1], theirs[:1], strict=True):
            compare(a, b, tolerance=1e-4)


def hooked(hook_name):
    """Gradients of three steps with one of PyTorch's hooks, on our DDP and on PyTorch's."""

    def wrapper(kind):
        def wrap(model):
            wrapped = kind(model)
            if hook_name == "powersgd":
                state = powerSGD_hook.PowerSGDState(
                    None, matrix_approximation_rank=1, start_powerSGD_iter=2
                )
                wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
            else:
                wrapped.register_comm_hook(None, getattr(default_hooks, hook_name))
            return wrapped

        return wrap

    case = CASES["mlp"]
    return on_ranks(wrapper(DistributedDataParallel), case).gradients, on_ranks(
        wrapper(TorchDDP), case
    ).gradients


def test_state_dict_has_no_prefix_and_takes_both():
    def step():
        model = DistributedDataParallel(nn.Linear(2, 2))
        plain = nn.Linear(2, 2)
        plain.load_state_dict(model.state_dict())
        model.load_state_dict({f"module.{k}": v for k, v in plain.state_dict().items()})
        return sorted(model.state_dict())

    assert launch(step, 2)[1] == ["bias", "weight"]


def test_gradients_are_views_into_the_buckets_and_stay_so():
    def step():
        model = DistributedDataParallel(CASES["mlp"].build(0))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        places = []
        for i in range(4):
            optimizer.zero_grad()
            x, y = CASES["mlp"].batch(4, i)
            CASES["mlp"].loss(model(x), y).backward()
            inside = [
                any(b.buffer().data_ptr() <= p.grad.data_ptr() < b.buffer().data_ptr() + b.buffer().nbytes
                    for b in model.reducer.buckets)
                for p in model.parameters()
            ]  # fmt: skip
            places.append(all(inside))
            optimizer.step()
        return places

    assert launch(step, 2)[0] == [True] * 4


def test_buckets_follow_the_order_of_readiness_after_the_first_step():
    class Backwards(nn.Module):
        """Defined in the opposite order of its use, so the first guess is wrong."""

        def __init__(self):
            super().__init__()
            self.last, self.first = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.first(x))

    def step():
        model = DistributedDataParallel(Backwards(), bucket_cap_mb=0.00001)
        orders = []
        for _ in range(2):
            model(torch.ones(1, 4)).sum().backward()
            orders.append(
                [
                    model.reducer.names[p].split(".")[0]
                    for b in model.reducer.buckets
                    for p in b.parameters()
                ]
            )
            model.zero_grad()
        return orders

    before, after = launch(step, 2)[0]
    assert before == ["first", "first", "last", "last"]
    assert after == ["last", "last", "first", "first"]


def test_uneven_inputs_join():
    """Rank r has r + 1 batches. The mean counts a joined rank as zero, as PyTorch's DDP does."""

    def step(ours, by_initial):
        torch.manual_seed(dist.get_rank())
        model = (DistributedDataParallel if ours else TorchDDP)(CASES["mlp"].build(0))
        context = Join([model], divide_by_initial_world_size=by_initial)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with context:
            for i in range(dist.get_rank() + 1):
                x, y = CASES["mlp"].batch(4, 10 * dist.get_rank() + i)
                optimizer.zero_grad()
                CASES["mlp"].loss(model(x), y).backward()
                optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    for by_initial in (True, False):
        mine, theirs = launch(step, 3, True, by_initial), launch(step, 3, False, by_initial)
        for a, b in zip(mine[0], theirs[0], strict=True):
            assert torch.allclose(a, b, atol=1e-6)
        for a, b in zip(mine[0], mine[2], strict=True):
            assert torch.equal(a, b), "all ranks end with the same model"


def test_a_rank_without_any_data_in_the_first_epoch():
    """It has made no step of its own, and still builds its buckets again when the others do."""

    def step(kind):
        model = kind(CASES["mlp"].build(0))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for batches in ((dist.get_rank()), 3):
            with Join([model]):
                for i in range(batches):
                    x, y = CASES["mlp"].batch(4, 10 * dist.get_rank() + i)
                    optimizer.zero_grad()
                    CASES["mlp"].loss(model(x), y).backward()
                    optimizer.step()
        return [p.detach().clone() for p in model.parameters()]

    mine, theirs = launch(step, 2, DistributedDataParallel), launch(step, 2, TorchDDP)
    for a, b, c in zip(mine[0], mine[1], theirs[0], strict=True):
        assert torch.equal(a, b) and torch.allclose(a, c, atol=1e-6)


def test_micro_batches_of_a_rank_that_joins_in_the_middle_of_them_count():
    """Rank 1 has one micro-batch, which waits in no_sync() for a second; rank 0 has three,
    and averages the last two."""

    def step(hook):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(2, 1, bias=False))
        if hook:
            model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        steps = []
        with Join([model]):
            for i in range(3 if dist.get_rank() == 0 else 1):
                with model.no_sync() if i == 0 else nullcontext():
                    model(torch.full((1, 2), float(i + 1))).sum().backward()
                steps.append(model.module.weight.grad[0, 0].item())
                if i == 1:
                    model.zero_grad()
        return steps

    for hook in (False, True):
        first, second = launch(step, 2, hook)
        assert second == [1.0]
        assert first == [1.0, (1 + 2 + 1) / 2, 3 / 2]


# --- what it refuses --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda rank: nn.Linear(3 + rank, 2),
            r"rank 0 has weight \[2, 3\] float32, rank 1 has weight \[2, 4\] float32",
        ),
        (
            lambda rank: nn.Sequential(*[nn.Linear(2, 2) for _ in range(1 + rank)]),
            "rank 0 has 2 tensors, rank 1 has 4",
        ),
        (
            lambda rank: nn.Linear(2, 2, dtype=(torch.float32, torch.float64)[rank]),
            r"rank 0 has weight \[2, 2\] float32, rank 1 has weight \[2, 2\] float64",
        ),
        (
            lambda rank: nn.Linear(2, 2).requires_grad_(rank == 0),
            r"rank 0 has weight \[2, 2\] float32, rank 1 has weight \[2, 2\] float32 \(frozen\)",
        ),
        (
            lambda rank: nn.Linear(2, 2).requires_grad_(False),
            "none of the module's parameters needs a gradient",
        ),
        (
            lambda rank: nn.LazyLinear(2),
            "lazy layers have no shapes yet: run the module's forward once",
        ),
    ],
    ids=["shapes", "number", "dtypes", "frozen on one rank", "nothing to train", "lazy"],
)
def test_models_that_cannot_be_trained_together(build, message):
    """Said before anything is sent, and on every rank: none is left waiting for the others."""

    def step():
        try:
            DistributedDataParallel(build(dist.get_rank()))
        except ValueError as error:
            return str(error)

    for said in launch(step, 2):
        assert re.search(message, said), said


def test_two_backwards_for_one_step_are_refused():
    def step():
        model = DistributedDataParallel(nn.Linear(2, 2))
        first, second = model(torch.ones(1, 2)), model(torch.zeros(1, 2))
        first.sum().backward()
        second.sum().backward()

    with pytest.raises(RankFailure, match="add the losses and call backward once"):
        launch(step, 2)


def test_two_forwards_and_one_backward_are_fine():
    def step():
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(2, 2))
        scale = dist.get_rank() + 1.0
        (model(torch.ones(1, 2)) + model(torch.full((1, 2), scale))).sum().backward()
        return model.module.weight.grad.clone()

    assert torch.allclose(launch(step, 2)[1], torch.full((2, 2), 2.5))


def test_validation_between_forward_and_backward_changes_nothing():
    def step():
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Linear(2, 2))
        loss = model(torch.full((1, 2), dist.get_rank() + 1.0)).sum()
        with torch.no_grad():
            model(torch.ones(1, 2))
        loss.backward()
        return model.module.weight.grad.clone()

    assert torch.allclose(launch(step, 2)[1], torch.full((2, 2), 1.5))
