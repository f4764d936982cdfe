"""The tensors in a nest: all of them, each once, and put back where they were."""

from __future__ import annotations

import functools
import threading
import types
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

from dtcourse import nested

X = torch.ones(2)


@dataclass
class Plain:
    x: torch.Tensor
    name: str = "plain"


@dataclass(frozen=True)
class Frozen:
    x: torch.Tensor


@dataclass(frozen=True, slots=True)
class Slots:
    x: torch.Tensor
    more: list = field(default_factory=list)


class Private:
    __slots__ = ("__x", "never_set")

    def __init__(self, x):
        self.__x = x

    @property
    def x(self):
        return self.__x


class Object:
    def __init__(self, x):
        self.x = x


class Below(dict):
    pass


class WithAttribute(list):
    pass


class Colour(Enum):
    RED = 1


Pair = namedtuple("Pair", "first second")


def with_attribute(x):
    made = WithAttribute()
    made.x = x
    return made


def object_in_a_circle(x):
    made = Object(x)
    made.parent = {"child": made}
    return made


OPENED = {
    "tensor": lambda x: x,
    "list of tuples": lambda x: [(1, "a"), (x, None)],
    "dict": lambda x: {"x": x},
    "dict subclass": lambda x: Below(x=x),
    "ordered dict": lambda x: OrderedDict(x=x),
    "default dict": lambda x: defaultdict(list, x=[x]),
    "user dict": lambda x: UserDict(x=x),
    "mapping proxy": lambda x: types.MappingProxyType({"x": x}),
    "set": lambda x: {x},
    "frozen set": lambda x: frozenset([x]),
    "deque": lambda x: deque([x], maxlen=3),
    "named tuple": lambda x: Pair(0, [x]),
    "dataclass": Plain,
    "frozen dataclass": Frozen,
    "slots": lambda x: Slots(torch.zeros(1), [x]),
    "private slots": Private,
    "object": Object,
    "object in a circle": object_in_a_circle,
    "simple namespace": lambda x: types.SimpleNamespace(x=x),
    "attribute of a list": with_attribute,
    "partial, its arguments": lambda x: functools.partial(max, x),
    "function": lambda x: lambda: x,
    "function's default": lambda x: lambda y=x: y,
    "method": lambda x: Object(x).__init__,
    "method of a list": lambda x: [x].append,
    "torch's own": lambda x: pack_sequence([x]),
}


@pytest.mark.parametrize("kind", OPENED)
def test_all_tensors_are_found(kind):
    x = torch.rand(3, requires_grad=True)
    found = nested.tensors(OPENED[kind](x))
    if kind == "torch's own":  # which packs a copy, with lengths beside
        assert [t.requires_grad for t in found] == [True, False]
    else:
        assert any(t is x for t in found)


def test_each_is_found_once_in_the_order_in_which_they_lie():
    a, b, c = (torch.full((1,), float(i)) for i in range(3))
    assert [id(t) for t in nested.tensors([a, {"b": [b, a], "c": (c, b)}])] == [id(a), id(b), id(c)]


def test_deep_nests_are_no_trouble():
    value: list = [X]
    for _ in range(5000):
        value = [value]
    assert nested.tensors(value)[0] is X


def test_what_cannot_be_opened_is_told_apart_from_what_holds_nothing():
    nothing = [
        None, 1, 2.0, True, "text", b"bytes", range(3), torch.float32, torch.device("cpu"), torch.Size([2]), Colour.RED,
        np.ones(3), np.float32(1.0), [], {}, (), Object(1), Private(2), slice(1, 2),
        Object, torch, print, torch.relu, test_deep_nests_are_no_trouble,
    ]  # fmt: skip
    for value in nothing:
        closed: list = []
        assert nested.tensors(value, closed) == [] and closed == [], value

    def generator():
        yield X

    hidden = [generator(), iter([X]), map(str, [X]), nn.Linear(1, 1), threading.Lock(), object(), Object(iter([X])),
              lambda: hidden, nn.Linear(1, 1).forward]  # fmt: skip
    for value in hidden:
        closed = []
        nested.tensors((X, value), closed)
        assert closed, value


# --- put back --------------------------------------------------------------------------------------------------

MAPPED = (
    "tensor",
    "list of tuples",
    "dict",
    "dict subclass",
    "ordered dict",
    "default dict",
    "set",
    "frozen set",
    "deque",
    "named tuple",
    "dataclass",
    "frozen dataclass",
    "slots",
    "attribute of a list",
    "torch's own",
)


@pytest.mark.parametrize("kind", MAPPED)
def test_tensors_are_replaced_in_a_nest_of_the_same_kind(kind):
    value = OPENED[kind](torch.ones(3))
    before = [t.dtype for t in nested.tensors(value)]
    new = nested.map_tensors(lambda t: t.double() if t.is_floating_point() else t, value)
    assert type(new) is type(value) and new is not value
    wide = [torch.float64 if dtype is torch.float32 else dtype for dtype in before]
    assert [t.dtype for t in nested.tensors(new)] == wide
    assert [t.dtype for t in nested.tensors(value)] == before, "the original stays"


def test_a_copy_keeps_all_else():
    new = nested.map_tensors(torch.Tensor.double, defaultdict(list, x=[X]))
    assert new.default_factory is list and new["x"][0].dtype == torch.float64
    assert nested.map_tensors(torch.Tensor.double, deque([X], maxlen=3)).maxlen == 3
    assert nested.map_tensors(torch.Tensor.double, Plain(X, "other")).name == "other"
    pair = nested.map_tensors(torch.Tensor.double, torch.ones(2, 2).max(0))
    assert pair.values.dtype == pair.indices.dtype == torch.float64
    first, second = nested.map_tensors(torch.Tensor.double, (X, [X]))
    assert first is second[0], "what was one tensor stays one"


def test_what_is_not_changed_stays_itself():
    for value in ({"x": [X]}, Plain(X), Pair(X, 1), [1, 2]):
        assert nested.map_tensors(lambda t: t, value) is value
    for value in (Object(X), UserDict(x=X), nn.Linear(1, 1), Plain):
        assert nested.map_tensors(torch.Tensor.double, value) is value
