"""What full sharding refuses, and in which words."""

from __future__ import annotations

import copy
import pickle
import re
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from dtcourse import launch
from dtcourse.collectives import checks
from dtcourse.sharding import (
    FullyShardedDataParallel,
    full_gradients,
    fully_shard,
    same_units,
)
from dtcourse.verify import compare


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))


def sharded(shard):
    built = model()
    shard(built[0])
    return shard(built)


X = torch.ones(1, 2)


def moved_whole(shard):
    sharded(shard).to(torch.float64)


def moved_inside(shard):
    built = sharded(shard)
    built[2].double()  # not a unit itself: nobody is asked
    built(X)


def unfrozen_later(shard):
    built = sharded(shard)
    built[2].weight.requires_grad_(False)
    built(X)


def optimizer_before(shard):
    built = model()
    optimizer = torch.optim.Adam(built.parameters())
    shard(built)
    built(X).sum().backward()
    optimizer.step()


def backward_of_a_forward_before(shard):
    built = model()
    loss = built(X).sum()
    shard(built)
    loss.backward()


def used_while_freed(shard):
    built = sharded(shard)
    F.linear(X, built[0].weight)


def used_while_freed_without_gradients(shard):
    built = sharded(shard)
    with torch.no_grad():
        built[2](torch.ones(1, 4))


def used_in_another_function(shard):
    (sharded(shard)[2].bias * 2).sum()


def whole_one_kept_and_used_later(shard):
    built = sharded(shard)
    seen = []
    built[0].register_forward_pre_hook(lambda m, a: seen.append(m.weight))
    built(X)
    seen[0].sum()  # its memory is gone: without a guard this ends the process


def forward_around_the_hooks(shard):
    sharded(shard).forward(X)


def tied_across_units(shard):
    built = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    built[1].weight = built[0].weight
    shard(built[0])
    shard(built)


def twice(shard):
    shard(sharded(shard))


def different_models(shard):
    shard(nn.Linear(2 + dist.get_rank(), 3))


def different_numbers(shard):
    shard(nn.Sequential(*[nn.Linear(2, 2) for _ in range(1 + dist.get_rank())]))


def three_axes(shard):
    shard(model(), mesh=init_device_mesh("cpu", (1, 1, 2), mesh_dim_names=("a", "b", "c")))


def no_reset_parameters(shard):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.empty(3, device="meta"))

    shard(Scale())


def copied(shard):
    copy.deepcopy(sharded(shard))


def clipped_to_nothing(shard):
    sharded(shard).clip_grad_norm_(0.0)


def backwarded(shard):
    built = sharded(shard)
    built(X).square().sum().backward()
    return built


def clipped_by_torch(shard):
    nn.utils.clip_grad_norm_(backwarded(shard).parameters(), 0.1)


def clipped_by_torch_in_groups(shard):
    nn.utils.clip_grad_norm_(backwarded(shard).parameters(), 0.1, float("inf"), foreach=True)


def norm_by_torch(shard):
    nn.utils.get_total_norm([p.grad for p in backwarded(shard).parameters()])


def norm_of_a_gradient(shard):
    backwarded(shard)[0].weight.grad.norm()


def norm_of_a_parameter(shard):
    built = backwarded(shard)
    with torch.no_grad():
        torch.linalg.vector_norm(built[0].bias)


def scaled_by_torch(shard):
    built = sharded(shard)
    optimizer = torch.optim.SGD(built.parameters(), 0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(built(X).sum()).backward()
    scaler.step(optimizer)


def stepped(optimizer):
    optimizer.step(lambda: torch.tensor(0.0))


def lbfgs(shard):
    stepped(torch.optim.LBFGS(backwarded(shard).parameters()))


def adafactor(shard):
    stepped(torch.optim.Adafactor(backwarded(shard).parameters()))


def module_list(shard):
    shard(nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)]))


def module_dict(shard):
    shard(nn.ModuleDict({"a": nn.Linear(2, 2)}))


def second_derivative(shard):
    built, x = sharded(shard), X.clone().requires_grad_()
    torch.autograd.grad(built(x).square().sum(), x, create_graph=True)


def step_between_forward_and_backward(shard):
    built = sharded(shard)
    optimizer = torch.optim.SGD(built.parameters(), 0.1)
    first, second = built(X).square().sum(), built(2 * X).square().sum()
    first.backward()
    optimizer.step()
    second.backward()


def optimizer_while_gathered(shard):
    built = sharded(shard)
    built[0].unshard()
    optimizer = torch.optim.SGD(built.parameters(), 0.1)
    built(X).sum().backward()
    optimizer.step()


def hook_on_a_part(shard):
    sharded(shard)[0].weight.register_hook(lambda g: 2 * g)


def gradients_of_parts(shard):
    built = sharded(shard)
    torch.autograd.grad(built(X).sum(), list(built.parameters()), allow_unused=True)


def pickled(shard):
    pickle.dumps(sharded(shard))


def parameter_replaced(shard):
    built = sharded(shard)
    built[2].weight = nn.Parameter(torch.ones(2, 4))
    built(X)


def sparse_gradient(shard):
    built = shard(nn.Embedding(5, 2, sparse=True))
    built(torch.tensor([1])).sum().backward()


def scalar(shard):
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

    shard(Scale())


def sharded_twice(shard):
    built = nn.Linear(2, 4)
    mesh = init_device_mesh("cpu", (2,))
    built.weight = nn.Parameter(distribute_tensor(built.weight.detach(), mesh, [Shard(0)]))
    shard(built)


def assigned(shard):
    built = sharded(shard)
    other = {name: value.bfloat16() for name, value in built.state_dict().items()}
    built.load_state_dict(other, assign=True)


MISTAKES = {
    optimizer_before: r"built before the model was sharded: it holds 4 parameters .*0.weight, 0.bias, 2.weight",
    backward_of_a_forward_before: "as it was before it was sharded: this loss comes from a forward",
    whole_one_kept_and_used_later: r"weight \[4, 2\] of 0 is sharded",
    tied_across_units: "1.weight is the same parameter as weight of another unit",
    twice: r"sharded already: shard a module once. \(Each distinct .* API can only be applied to a module once.\)",
    different_models: r"rank 0 has weight \[3, 2\] float32, rank 1 has weight \[3, 3\]",
    different_numbers: "rank 0 has 2 tensors, rank 1 has 4",
    three_axes: r"this one has 3: \(1, 1, 2\)",
    copied: "a sharded model is not copied",
    module_list: "(fully_shard|FullyShardedDataParallel) does not support containers that do not implement forward: "
    "ModuleList has none.* Shard the modules in it",
    module_dict: "ModuleDict has none",
    second_derivative: "create_graph=True: a second backward through Sequential",
    step_between_forward_and_backward: "have been changed between its forward and this backward",
    optimizer_while_gathered: "built while parameters were gathered: it holds 2 whole ones, the first weight",
    pickled: "a sharded model is not pickled",
    parameter_replaced: "2.weight of Sequential was replaced or removed",
    sparse_gradient: "the gradient of weight is sparse",
}

# A part of a flat is no tensor of the parameter's kind.
OF_FLATS = {
    moved_whole: "was to become torch.float64 .* Convert and move it first",
    moved_inside: "2.weight of Sequential was moved or converted after it was sharded",
    unfrozen_later: "requires_grad of 2.weight .* changed after it was sharded from True to False",
    no_reset_parameters: "has no reset_parameters",
    used_while_freed: r"weight \[4, 2\] .* is sharded, and was used as if it were whole",
    used_while_freed_without_gradients: r"2.weight \[2, 4\] .* is sharded",
    used_in_another_function: r"2.bias \[2\] .* is sharded",
    forward_around_the_hooks: r"Call the module itself \(model\(x\), not model.forward\(x\)\)",
    clipped_to_nothing: "max_norm is a number above 0; got 0.0",
    clipped_by_torch: r"weight \[4, 2\] of 0 is sharded, .*of its gradient would be .* call model.clip_grad_norm_",
    clipped_by_torch_in_groups: "model.clip_grad_norm_",
    norm_by_torch: "model.clip_grad_norm_",
    norm_of_a_gradient: r"norm of its gradient would be of the \d elements that this rank keeps",
    norm_of_a_parameter: r"bias \[4\] of 0 is sharded, and linalg_vector_norm of it would be",
    scaled_by_torch: r"dtcourse.memory.GradScaler\(group=...\)",
    lbfgs: "LBFGS looks at whole parameters",
    adafactor: "is sharded, and norm of it would be",
    hook_on_a_part: r"a hook on weight \[4, 2\] of the model would never run",
    gradients_of_parts: "no graph ends in them",
}

# PyTorch says the first in its own words.
OF_ROWS = {
    used_while_freed: "mixed torch.Tensor and DTensor",
    forward_around_the_hooks: "mixed torch.Tensor and DTensor",
    scalar: "scale is a scalar, and has no rows to cut",
    sharded_twice: "weight is a DTensor",
    assigned: "0.weight is torch.float32 here and torch.bfloat16 in the state: assign=True would change it",
}


def make(shard, mistakes):
    """What each mistake raises on this rank; no collective is left half-way by any of them."""
    said = {}
    for mistake in mistakes:
        try:
            mistake(shard)
        except (ValueError, RuntimeError) as error:
            said[mistake.__name__] = f"{type(error).__name__}: {error}"
    return said


def test_they_are_refused_with_a_word_of_help(shard):
    mistakes = MISTAKES | (OF_ROWS if shard is fully_shard else OF_FLATS)
    for rank in launch(make, 2, shard, list(mistakes)):
        for mistake, words in mistakes.items():
            said = rank.get(mistake.__name__, "nothing was raised")
            assert re.search(words, said), (mistake.__name__, said)


def test_gradients_of_parts_go_by_all_that_goes_element_by_element():
    def step():
        built = backwarded(FullyShardedDataParallel)
        norm = built.clip_grad_norm_(0.5)
        # of a known norm
        nn.utils.clip_grads_with_norm_(built.parameters(), 0.25, norm.clamp(max=0.5))
        nn.utils.clip_grad_value_(built.parameters(), 0.2)
        gradients = full_gradients(built)
        p = built[0].weight
        own = p.grad.detach().norm() if p.numel() else torch.zeros(())  # told so, it is the part's
        copies = (p.grad.clone(), copy.deepcopy(p.grad), pickle.loads(pickle.dumps(p.grad)))
        assert all(torch.equal(p.grad, c) for c in copies)
        return gradients, own, {type(c) for c in copies}

    plain = model()
    plain(X).square().sum().backward()
    nn.utils.clip_grad_norm_(plain.parameters(), 0.25)
    nn.utils.clip_grad_value_(plain.parameters(), 0.2)
    own = []
    for gradients, norm, kinds in launch(step, 2):
        compare(gradients, {n: p.grad for n, p in plain.named_parameters()})
        own.append(norm)
        assert kinds == {torch.Tensor}
    assert torch.stack(own).norm().item() == pytest.approx(
        plain[0].weight.grad.norm().item(), rel=1e-4
    )


def test_parameters_gathered_by_hand_are_trained(shard):
    """What the message about a part that is used as if it were whole advises."""

    def forward(built):
        hidden = torch.tanh(F.linear(X.clone().requires_grad_(), built[0].weight, built[0].bias))
        return F.linear(hidden, built[2].weight, built[2].bias).square().sum()

    def step():
        built = model()
        for layer in (built[0], built[2]):
            shard(layer)
            layer.unshard()
        shard(built)
        forward(built).backward()
        for layer in (built[0], built[2]):
            layer.reshard()
        return full_gradients(built)

    plain = model()
    forward(plain).backward()
    compare(launch(step, 2)[0], {n: p.grad for n, p in plain.named_parameters()})


def test_a_hook_runs_when_the_parts_gradient_is_there(shard):
    def step():
        built, seen = sharded(shard), []
        for name, p in built.named_parameters():
            p.register_post_accumulate_grad_hook(
                lambda p, name=name: seen.append((name, p.grad.shape == p.shape))
            )
        built(X).sum().backward()
        return sorted(seen)

    assert launch(step, 2)[1] == [(n, True) for n in ("0.bias", "0.weight", "2.bias", "2.weight")]


def test_plain_models_beside_it_are_clipped_as_ever(shard):
    def step():
        backwarded(shard)
        plain = model()
        plain(X).square().sum().backward()
        return nn.utils.clip_grad_norm_(plain.parameters(), 0.1)

    assert launch(step, 2)[0] > 0.1


def test_what_is_no_mistake(shard):
    def step():
        built = sharded(shard)
        same = built.to(torch.float32).to("cpu")  # changes nothing
        built[0].unshard()
        whole = F.linear(X, built[0].weight).shape  # gathered by hand
        built[0].reshard()
        part = built[0:1]
        decayed = sum(p.detach().square().sum() for p in built.parameters())
        return (
            same is built,
            tuple(whole),
            type(part).__name__,
            float(decayed) > 0,
            repr(built[2].bias),
        )

    for same, whole, part, decayed, _ in launch(step, 2):
        assert (same, whole, part, decayed) == (True, (1, 4), "Sequential", True)


def test_outside_a_launch(shard):
    with pytest.raises(ValueError, match="needs a process group"):
        shard(model())
    with pytest.raises(ValueError, match="only a module can be sharded; got list"):
        shard([model()])


def test_a_failed_forward_or_backward_does_not_spoil_the_next(shard):
    def step():
        built = sharded(shard)
        expected = None
        for trouble in ("none", "forward", "none", "backward", "none"):
            built.zero_grad()
            inner = built[2] if trouble == "forward" else built[0]

            def fail(*_):
                raise ArithmeticError("on purpose")

            if trouble == "forward":
                handle = inner.register_forward_pre_hook(fail)
            elif trouble == "backward":
                handle = inner.register_full_backward_hook(fail)
            try:
                built(X).sum().backward()
            except ArithmeticError:
                handle.remove()
                continue
            gradients = [p.grad.clone() for p in built.parameters()]
            expected = expected or gradients
            assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True)), trouble
        return True

    assert list(launch(step, 2)) == [True, True]


# --- ranks that call different units ----------------------------------------------------------------------------------


class Branches(nn.Module):
    """Three units, of which a rank calls those that it is told, in that order."""

    def __init__(self):
        super().__init__()
        for name in "abc":
            setattr(self, name, nn.Linear(4, 4))

    def forward(self, x, units):
        for name in units:
            x = getattr(self, name)(x)
        return x


# What rank 0 calls, what the others do, and what each rank is told. PyTorch's own has wrong sums there.
PARTED = {
    "other units": ("a", "b", "rank 0: gather in forward of a; rank 1: gather in forward of b"),
    "another order": ("abc", "acb", "rank 0: gather in forward of b; rank 1: gather in forward of c"),
    "a unit is left out": ("abc", "ac", "rank 0: gather in forward of b; rank 1: gather in forward of c"),
    "the last one is": ("abc", "ab", "rank 0: gather in forward of c; rank 1: gather in backward of b"),
}  # fmt: skip


def parted():
    """What each rank is told, by the case and how it is sharded; then the first model again, in which nothing is so."""
    same_units.MOMENT = timedelta(seconds=60)  # a busy machine's
    said, x = {}, torch.randn(3, 4)
    for name, (mine, theirs, _) in PARTED.items():
        for shard in (fully_shard, FullyShardedDataParallel):
            branches = Branches()
            for unit in "abc":
                shard(getattr(branches, unit))
            shard(branches)
            with pytest.raises(ValueError) as caught:
                branches(x, mine if dist.get_rank() == 0 else theirs).sum().backward()
            said[name, shard.__name__] = str(caught.value)
    alike = Branches()
    for unit in "ab":
        fully_shard(getattr(alike, unit))
    fully_shard(alike)
    for units in ("a", "a", "ab", "a"):
        alike(x, units).sum().backward()
    return said, checks.notes_of(dist.group.WORLD, "units").count


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_ranks_that_call_different_units_are_told_before_anything_is_gathered(backend):
    (one, count), (other, again) = launch(parted, 2, backend=backend)
    assert one == other and count == again
    for (name, _), words in one.items():
        assert PARTED[name][2] in words
        assert "all call the same ones in the same order" in words


def test_on_a_gpu_a_rank_that_has_not_come_yet_is_looked_for_again(monkeypatch):
    """The host goes on where NCCL's gather has only been queued: that was told as a rank that never came."""
    compared, store = [], dist.HashStore()
    monkeypatch.setattr(same_units, "_compare", lambda *args: compared.append(args))
    units = same_units.SameUnits()
    units._late.append((None, None, SimpleNamespace(store=store), ["of rank 1"]))
    units.check_late(all_came=False)
    assert not compared
    store.set("of rank 1", "gather of a")
    for _ in range(2):
        units.check_late(all_came=False)
    assert len(compared) == 1


def late():
    """Rank 1 comes late: first to the units that both call, then to one that rank 0 does not."""
    same_units.MOMENT = timedelta(milliseconds=1)
    branches, x = Branches(), torch.randn(3, 4)
    for unit in "abc":
        fully_shard(getattr(branches, unit))
    fully_shard(branches)
    for unit in "abc":
        branches.get_submodule(unit).register_forward_pre_hook(
            lambda *_: time.sleep(0.1 * dist.get_rank()), prepend=True
        )
    branches(x, "ab").sum().backward()
    try:
        branches(
            x, "a" if dist.get_rank() == 0 else "c"
        )  # rank 0 has compared that, and does not ask again
    except ValueError as error:
        return str(error)
    return ""


def test_a_rank_that_is_late_is_waited_for_and_one_that_calls_something_else_found():
    none, said = launch(late, 2)
    assert none == ""
    assert "rank 1 is in gather in forward of c, and ranks [0] did not come to it" in said
