"""What a module may take and return when it is sharded: any object that holds tensors,
and gradients are one process's."""

from __future__ import annotations

import types
from collections import UserDict, namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from dtcourse import launch
from dtcourse.sharding import MixedPrecisionPolicy, full_gradients
from dtcourse.verify import compare

# Each value of each parameter is tried every time, their other combinations by turns (tests/turns.py).
pytestmark = pytest.mark.each_once("dtcourse/sharding/")


@dataclass
class Plain:
    y: torch.Tensor


@dataclass(frozen=True, slots=True)
class Slots:
    y: torch.Tensor


class Below(dict):
    pass


class Object:
    def __init__(self, y):
        self.rows = [y]

    def get(self):
        return self.rows[0]


Pair = namedtuple("Pair", "y other")

X = torch.arange(8.0).view(2, 4) / 8

# How a module hands over a tensor, and how who called it gets at it.
KINDS = {
    "dict": (lambda y: {"y": y}, lambda r: r["y"]),
    "dict subclass": (lambda y: Below(y=y), lambda r: r["y"]),
    "user dict": (lambda y: UserDict(y=y), lambda r: r["y"]),
    "dataclass": (Plain, lambda r: r.y),
    "slots": (Slots, lambda r: r.y),
    "named tuple": (lambda y: Pair(y, "other"), lambda r: r.y),
    "object": (Object, lambda r: r.get()),
    "a nest of them": (lambda y: [Plain(Below(y={"y": y}))], lambda r: r[0].y["y"]["y"]),
    "function": (lambda y: lambda: y, lambda r: r()),
    "method": (lambda y: Object(y).get, lambda r: r()),
    # Into these nobody can look: the parameters must still be there when backward comes.
    "iterator": (lambda y: iter([y]), next),
    "a tensor, and an iterator": (lambda y: (y.detach(), iter([y])), lambda r: next(r[1])),
}


class Scaled(nn.Module):
    """Its backward reads a weight element by element: one that is gone ends the process."""

    def __init__(self, kind):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(4))
        self.inner, self.wrap = nn.Linear(4, 4), KINDS[kind][0]

    def forward(self, x):
        return self.wrap(torch.tanh(self.inner(x)) * self.weight)


class Net(nn.Module):
    """A module that returns such an object, inside one that does."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.scaled, self.last = nn.Linear(4, 4), Scaled(kind), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.rand(4))
        self.wrap, self.open = KINDS[kind]

    def forward(self, x):
        return self.wrap(self.last(self.open(self.scaled(self.first(x)))) * self.scale)


def sharded(shard, kind):
    model = Net(kind)
    for part in (model.first, model.scaled, model.last):
        shard(part)
    return shard(model)


def train(model, steps=2):
    for step in range(steps):
        model.zero_grad()
        x = torch.arange(8.0).view(2, 4) / 8 + step
        model.open(model(x)).square().sum().backward()


def gradients(shard, kind):
    model = sharded(shard, kind)
    train(model)
    return full_gradients(model), {m._fsdp.state for m in model.modules() if hasattr(m, "_fsdp")}


@pytest.mark.parametrize("kind", KINDS)
def test_results_of_any_kind(shard, kind):
    plain = Net(kind)
    train(plain)
    found, states = launch(gradients, 2, shard, kind)[1]
    compare(found, {n: p.grad for n, p in plain.named_parameters()})
    assert states == {"sharded"}, "after backward nothing stays whole"


def test_parameters_wait_in_memory_only_where_nobody_can_look(shard):
    def states(kind):
        model = sharded(shard, kind)
        result = model(torch.ones(2, 4))
        found = model.scaled._fsdp.state
        model.open(result).sum().backward()
        return found

    for kind in ("dataclass", "object", "user dict"):
        assert launch(states, 2, kind)[0] == "sharded", kind
    assert launch(states, 2, "iterator")[0] == "unsharded"


class ChangedInPlace(nn.Module):
    """Each block returns a view, which who called it changes: its history, and the hook on it, are replaced."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Flatten(0)) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            y = block(x)
            y *= x.view(-1)
            x = y.view_as(x)
        return x


class LeavesResults(nn.Module):
    """Blocks leave a loss on themselves, as mixtures of experts do; one is added to in place, one is in a list."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.auxiliary, self.kept = None, []

        def forward(self, x):
            y = torch.tanh(self.layer(x))
            self.auxiliary = torch.zeros(())
            self.auxiliary += self.layer(y).square().mean()
            self.kept = [(y * self.layer.bias).sum()]
            return y

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(self.Block() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square() + sum(b.auxiliary + b.kept[0] for b in self.blocks)


@pytest.mark.parametrize("kind", [ChangedInPlace, LeavesResults])
def test_results_that_no_hook_on_the_result_would_see(shard, kind):
    def on_rank():
        model = kind()
        for block in model.blocks:
            shard(block)
        shard(model)
        for _ in range(2):
            model.zero_grad()
            model(X).sum().backward()
        return full_gradients(model)

    plain = kind()
    plain(X).sum().backward()
    compare(launch(on_rank, 2)[0], {n: p.grad for n, p in plain.named_parameters()})


def test_what_lay_on_a_module_before_is_no_result_of_it(shard):
    """Taken for one, it would gather the module's parameters when its gradient comes, which does not need them."""

    def on_rank():
        first, second = shard(nn.Linear(4, 4)), shard(LeavesResults.Block())
        second.context = first(X)
        second(X)
        second.context.sum().backward()

    gathers = launch(on_rank, 2, record=True).timeline.of(rank=0, name="gather Block")
    assert len(gathers) == 1, "for forward"


def test_all_that_is_taken_and_returned_is_cast(shard):
    class Casts(nn.Module):
        def __init__(self, kind):
            super().__init__()
            self.layer, (self.wrap, self.open) = nn.Linear(4, 4), KINDS[kind]

        def forward(self, given, more=None):
            return self.wrap(self.layer(self.open(given) + self.open(more)))

    def dtypes():
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, output_dtype=torch.float64)
        found = {}
        for kind in ("dict subclass", "dataclass", "slots", "named tuple", "a nest of them"):
            model = shard(Casts(kind), mp_policy=policy)
            wrap, unwrap = KINDS[kind]
            given = wrap(torch.ones(2, 4))
            result = model(given, more=wrap(torch.ones(2, 4)))
            found[kind] = type(result) is type(given), unwrap(result).dtype, unwrap(given).dtype
        return found

    for kind, found in launch(dtypes, 2)[0].items():
        assert found == (True, torch.float64, torch.float32), kind


def test_another_object_is_passed_as_it_is(shard):
    """A cache that forward writes to is the caller's own."""

    class Remembers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)

        def forward(self, x, cache):
            cache.last = self.layer(x)
            return cache

    def step():
        model = shard(Remembers(), mp_policy=MixedPrecisionPolicy(torch.bfloat16))
        cache = types.SimpleNamespace(last=torch.zeros(1))
        same = model(torch.ones(1, 2), cache) is cache
        return same, cache.last.dtype

    assert launch(step, 2)[0] == (True, torch.bfloat16)
