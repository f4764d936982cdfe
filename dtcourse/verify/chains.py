"""Models written down as data: a chain of small blocks, with what real models have and techniques stumble over.

    model = Chain([Block("linear"), Block("scale", same_as=None, recompute="reentrant")], width=3)
    y = result(model(x, left_out={1}), ...)

Tied and frozen parameters, parameters of odd shapes, of no dimension, of no elements; modules that are used twice or
left out; buffers; checkpoints; results in containers of all kinds. Everything is in double.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class Block:
    """One link of the chain: (rows, width) to (rows, width).

    kind:      "linear", "narrow" (down to `inner` features and up again), "scale" (a weight an element), "number" (a
               0-dimensional weight), "empty" (a weight without elements)
    frozen:    the names of its parameters that need no gradient
    same_as:   an earlier block: this one is the same module again ("module"), or has its weight ("weight")
    optional:  forwards may leave it out
    beside:    what it makes is returned beside the result, and the loss does not depend on it
    recompute: "" or, under a checkpoint, "reentrant" or "not reentrant"
    returns:   what its output is in: a key of CONTAINERS
    buffer:    multiplies by a buffer, which backward needs, and counts its calls in another
    unit:      a technique that wraps inner modules wraps this one
    """

    kind: str = "linear"
    inner: int = 1
    bias: bool = True
    frozen: frozenset[str] = frozenset()
    same_as: tuple[int, str] | None = None
    optional: bool = False
    beside: bool = False
    recompute: str = ""
    returns: str = "tensor"
    buffer: bool = False
    unit: bool = False

    @property
    def is_repeated(self) -> bool:
        """Whether it is an earlier block's module."""
        return self.same_as is not None and self.same_as[1] == "module"

    def __str__(self) -> str:
        if self.same_as is not None and self.is_repeated:
            words = [f"block {self.same_as[0]} once more"]
        else:
            words = [f"narrow ({self.inner})" if self.kind == "narrow" else self.kind]
            words += ["no bias"] * (self.kind in ("linear", "narrow") and not self.bias)
            if self.same_as is not None:
                words.append(f"with block {self.same_as[0]}'s weight")
            words += [f"{name} frozen" for name in sorted(self.frozen)]
            words += ["a buffer"] * self.buffer
            words += [f"returns a {self.returns}"] * (self.returns != "tensor")
            words += ["a unit"] * self.unit
        words += [f"{self.recompute} checkpoint"] * bool(self.recompute)
        words += ["optional"] * self.optional + ["beside the result"] * self.beside
        return ", ".join(words)


# --- what a module may return -----------------------------------------------------------------------------------


@dataclass
class Holder:
    """A result in a dataclass, as many libraries return it."""

    result: torch.Tensor
    note: str = "a string beside it"


class OwnDict(dict):
    """A dict of the user's own kind."""


class Opaque:
    """An object with a result in it, and nothing that says so."""

    def __init__(self, result: torch.Tensor) -> None:
        self.result = result


Pack = Callable[[torch.Tensor], Any]
CONTAINERS: dict[str, tuple[Pack, Callable[[Any], torch.Tensor]]] = {
    "tensor": (lambda y: y, lambda out: out),
    "tuple": (lambda y: (y, None), lambda out: out[0]),
    "list": (lambda y: [y], lambda out: out[0]),
    "dict": (lambda y: {"result": y}, lambda out: out["result"]),
    "nested dict": (lambda y: {"in": {"result": (y,)}, "n": 3}, lambda out: out["in"]["result"][0]),
    "subclass of dict": (lambda y: OwnDict(result=y), lambda out: out["result"]),
    "dataclass": (Holder, lambda out: out.result),
    "object": (Opaque, lambda out: out.result),
}


def packed(result: torch.Tensor, container: str) -> Any:
    """The result in a container."""
    return CONTAINERS[container][0](result)


def unpacked(output: Any, container: str) -> torch.Tensor:
    """The result out of it."""
    return CONTAINERS[container][1](output)


# --- the model --------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    """What a Block describes, but for its checkpoint and its place."""

    weight: nn.Parameter
    by: torch.Tensor
    calls: torch.Tensor

    def __init__(self, block: Block, width: int) -> None:
        super().__init__()
        self.block = block
        inner = block.inner if block.kind == "narrow" else width
        shapes: dict[str, tuple[int, ...]] = {
            "linear": (width, width),
            "narrow": (inner, width),
            "scale": (width,),
            "number": (),
            "empty": (0,),
        }
        self.weight = nn.Parameter(torch.randn(shapes[block.kind], dtype=torch.float64) / 2)
        has_bias = block.bias and block.kind in ("linear", "narrow")
        self.bias = nn.Parameter(torch.randn(inner, dtype=torch.float64) / 2) if has_bias else None
        if block.buffer:
            self.register_buffer("by", torch.rand(width, dtype=torch.float64) + 0.5)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name not in block.frozen)

    def forward(self, x: torch.Tensor) -> Any:
        kind = self.block.kind
        if kind == "linear":
            y = nn.functional.linear(x, self.weight, self.bias)
        elif kind == "narrow":
            y = nn.functional.linear(x, self.weight, self.bias) @ self.weight
        elif kind == "empty":
            y = x + self.weight.sum()
        else:
            y = x * self.weight
        if self.block.buffer:
            y = y * self.by
            self.calls += 1
        return packed(torch.tanh(y), self.block.returns)


class Chain(nn.Module):
    """Blocks one after the other; returns the result in the container `returns`, with
    what is beside it, if anything.
    """

    def __init__(self, blocks: Sequence[Block], width: int, returns: str = "tensor") -> None:
        super().__init__()
        self.blocks, self.returns = tuple(blocks), returns
        layers: list[Layer] = []
        for block in blocks:
            if block.same_as is not None and block.is_repeated:
                layers.append(layers[block.same_as[0]])
                continue
            layers.append(Layer(block, width))
            if block.same_as is not None:
                layers[-1].weight = layers[block.same_as[0]].weight
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor, left_out: Collection[int] = ()) -> Any:
        beside = []
        for i, (block, layer) in enumerate(zip(self.blocks, self.layers, strict=True)):
            if i in left_out:
                continue
            if block.recompute:
                y = checkpoint(layer, x, use_reentrant=block.recompute == "reentrant")
            else:
                y = layer(x)
            y = unpacked(y, layer.block.returns)  # type: ignore[union-attr, arg-type]
            if block.beside:
                beside.append(y)
            else:
                x = y
        return packed(x, self.returns), beside
