"""How a module is cut: what a plan names. The styles of one layer, which have PyTorch's names, are in single_layers.py.

A style checks first, with the sizes in its message, and changes nothing before all of a plan is checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

import torch.distributed as dist
from torch import nn

from dtcourse.parameters.replicas import Group
from dtcourse.tensor_parallel.linear import ColumnParallelLinear, RowParallelLinear, SharedInput
from dtcourse.tensor_parallel.random_state import SplitDropout
from dtcourse.tensor_parallel.shards import divisors, require_divides

COLUMNS = {"weight": 0, "bias": 0}
ROWS = {"weight": 1}


class Style(Protocol):
    """One entry of a plan."""

    def check(self, module: nn.Module, name: str, size: int) -> None:
        """Raises ValueError, naming the module and its sizes, where it cannot be cut over `size` ranks."""

    def cuts(self, module: nn.Module) -> dict[str, int]:
        """The parameters that it will cut, by their names in the module, and along which dim."""

    def apply(self, module: nn.Module, group: Group) -> nn.Module:
        """The module's parallel form: another one, or itself with other modules in it."""


@dataclass(frozen=True)
class RegionParallel:
    """A parallel region: layers of one input, by columns, anything elementwise, and a layer by rows.

    columns, row: names in the module. All columns read the same tensor, so there is one all-reduce each way.
    """

    columns: tuple[str, ...] = ("up",)
    row: str = "down"

    def check(self, module: nn.Module, name: str, size: int) -> None:
        for part in (*self.columns, self.row):
            layer = _child(module, part, name)
            require(layer, f"{name}.{part}", (nn.Linear,), "RegionParallel")
            cut = (
                linear_of(layer).in_features if part == self.row else linear_of(layer).out_features
            )
            side = "inputs" if part == self.row else "outputs"
            require_divides(cut, size, f"the {side} of {name}.{part}")

    def cuts(self, module: nn.Module) -> dict[str, int]:
        return _inside(dict.fromkeys(self.columns, COLUMNS) | {self.row: ROWS})

    def apply(self, module: nn.Module, group: Group) -> nn.Module:
        columns = [ColumnParallelLinear(linear_of(getattr(module, c)), group) for c in self.columns]
        if len(columns) > 1:
            SharedInput(columns)
        for name, layer in zip(self.columns, columns, strict=True):
            setattr(module, name, layer)
        setattr(module, self.row, RowParallelLinear(linear_of(getattr(module, self.row)), group))
        return module


@dataclass(frozen=True)
class HeadwiseParallel:
    """Attention with `query`, `key`, `value`, `output` and `d_head`: each rank has some of the heads.

    Grouped-query heads go with their key-value heads. Where those are fewer than the ranks, neighbouring ranks hold the
    same one: each computes it for its own queries, and its weights' gradients are summed over them.
    What is between, the core, works on the heads that it is given and stays as it is.
    """

    _replicas: dict[tuple[Group, int], Any] = field(default_factory=dict, compare=False, repr=False)

    def check(self, module: nn.Module, name: str, size: int) -> None:
        for part in ("query", "key", "value", "output"):
            require(_child(module, part, name), f"{name}.{part}", (nn.Linear,), "HeadwiseParallel")
        if not isinstance(getattr(module, "d_head", None), int):
            raise ValueError(f"{name} does not say how wide a head is: set its d_head")
        heads, kv = self._heads(module)
        require_divides(heads, size, f"the attention heads of {name}")
        if kv % size and size % kv:
            fits = [n for n in divisors(heads) if not (kv % n and n % kv)]
            raise ValueError(
                f"{name} has {kv} key-value heads, which cannot be given "
                f"out to {size} ranks: each gets an equal number of them, or an equal number of ranks shares one. "
                f"{', '.join(map(str, fits))} ranks would do"
            )

    def cuts(self, module: nn.Module) -> dict[str, int]:
        return _inside(dict.fromkeys(("query", "key", "value"), COLUMNS) | {"output": ROWS})

    def apply(self, module: nn.Module, group: Group) -> nn.Module:
        _, kv = self._heads(module)
        copies = max(1, dist.get_world_size(group) // kv)
        replicas = self._group_of_replicas(group, copies)
        query, key, value, output = (
            linear_of(getattr(module, part)) for part in ("query", "key", "value", "output")
        )
        columns = [ColumnParallelLinear(query, group)]
        columns += [
            ColumnParallelLinear(layer, group, copies=copies, replicas=replicas)
            for layer in (key, value)
        ]
        SharedInput(columns)
        for name, layer in zip(("query", "key", "value"), columns, strict=True):
            setattr(module, name, layer)
        module.output = RowParallelLinear(output, group)
        return module

    @staticmethod
    def _heads(module: Any) -> tuple[int, int]:
        """Query heads and key-value heads."""
        return (
            module.query.out_features // module.d_head,
            module.key.out_features // module.d_head,
        )

    def _group_of_replicas(self, group: Group, copies: int) -> Any:
        """The ranks that hold the same key-value head as this one: `copies` neighbours. One group for all blocks."""
        if copies == 1:
            return None
        if (group, copies) not in self._replicas:
            first = dist.get_rank(group) // copies * copies
            everyone = dist.get_process_group_ranks(group)
            ranks = everyone[first : first + copies]
            self._replicas[group, copies] = dist.new_group(ranks, use_local_synchronization=True)
        return self._replicas[group, copies]


@dataclass(frozen=True)
class SplitDropoutParallel:
    """A dropout inside a parallel region, where each rank has its own part: each draws masks of its own."""

    def check(self, module: nn.Module, name: str, size: int) -> None:
        require(module, name, (nn.Dropout,), "SplitDropoutParallel")

    def cuts(self, module: nn.Module) -> dict[str, int]:
        return {}

    def apply(self, module: nn.Module, group: Group) -> nn.Module:
        return SplitDropout(module, group)


# --- what does not fit ------------------------------------------------------------------------------------------


def require(module: nn.Module, name: str, kinds: tuple[type, ...], style: str) -> None:
    """Raises ValueError unless the module is one of `kinds`, exactly: a subclass may compute something else."""
    if type(module) not in kinds:
        known = " or ".join(f"nn.{kind.__name__}" for kind in kinds)
        raise ValueError(f"{style} is for {known}, and {name} is a {type(module).__name__}")


def _inside(layers: dict[str, dict[str, int]]) -> dict[str, int]:
    return {f"{layer}.{name}": dim for layer, cut in layers.items() for name, dim in cut.items()}


def _child(module: nn.Module, part: str, name: str) -> nn.Module:
    child = getattr(module, part, None)
    if not isinstance(child, nn.Module):
        raise ValueError(
            f"{name} has no module {part!r}; it has {', '.join(n for n, _ in module.named_children()) or 'none'}"
        )
    return child


def linear_of(module: nn.Module) -> nn.Linear:
    """The module, which `require` has looked at."""
    assert isinstance(module, nn.Linear), "checked before"
    return module
