"""What gives the same bits twice here, and what does not: tried, not listed. And all that torch offers for it.

    print(determinism())                 # one process; in the ranks of a launch, the collectives besides
    with deterministic(seed=7):          # or deterministic(7), for the rest of the process
        train()

Addition of floating-point numbers depends on its order: (a + b) + c is not a + (b + c). So the same sum is another one
with other threads, on other ranks, in another bucket or by another algorithm; each of them is as right. An all_reduce
in which the ranks bring the same numbers in another order shows it. What `deterministic` cannot give: the same bits on
another number of ranks, another machine or another version.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import device
from dtcourse.parameters.cuts import Group
from dtcourse.torch_private import device_of_messages

SIZE = 1 << 18  # numbers of a sum
_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@dataclass(frozen=True)
class Tried:
    """One thing that was done twice. same: bit for bit;  off: the largest difference, relative to the largest value."""

    what: str
    same: bool
    off: float


@dataclass(frozen=True)
class Determinism:
    """What was tried here, and what could not be."""

    tried: list[Tried]
    untried: list[str] = field(default_factory=list)

    @property
    def same(self) -> list[str]:
        """What gave the same bits."""
        return [one.what for one in self.tried if one.same]

    @property
    def different(self) -> list[str]:
        """What did not."""
        return [one.what for one in self.tried if not one.same]

    def __str__(self) -> str:
        width = max(len(one.what) for one in self.tried)
        rows = [
            f"{one.what:{width}}  {'the same bits' if one.same else f'differs by {one.off:.0e}'}"
            for one in self.tried
        ]
        return "\n".join([*rows, *(f"not tried: {what}" for what in self.untried)])


def determinism(group: Group = None) -> Determinism:
    """Tries it. With a group of two or more ranks, or a default one, it is a collective, and tries that too."""
    where, make = device.current(), torch.Generator().manual_seed(0)
    # 64 sums: of one, two orders may give the same bits by chance.
    x = torch.randn(64, SIZE // 64, generator=make).to(where)
    a = torch.randn(256, 256, generator=make).to(where)
    places = torch.randint(64, (SIZE // 64,), generator=make).to(where)
    tried = [
        _twice("a matrix product, again", lambda _: a @ a),
        _twice("a sum, again", lambda _: x.sum(1)),
        _twice("a sum, its numbers reversed", lambda turn: (x.flip(1) if turn else x).sum(1)),
        _twice(
            "an index_add, again",
            lambda _: torch.zeros(64, 64, device=where).index_add_(1, places % 64, x),
        ),
        _twice("a sum in 2 parts, not in one", lambda turn: _in_parts(x, 1 + turn)),
        _twice("random numbers, the same seed", _drawn),
    ]
    untried = [] if device.is_gpu(where) else [
        "kernels of a GPU, of which some add by atomic operations (index_add, scatter_add, some convolutions' "
        "gradients): in another order each time"
    ]  # fmt: skip
    if device.is_gpu(where):
        untried.append("another number of threads: of a GPU there is none to set")
    else:
        tried.append(
            _twice("a sum, with 2 threads and with 1", lambda turn: _with_threads(2 - turn, x))
        )
    if dist.is_initialized() and dist.get_world_size(group) > 1:
        tried += _collectives(group)
        if dist.get_world_size(group) == 2:
            untried.append("an order of 2 ranks: a + b is b + a, so it takes 3 to see one")
    else:
        untried.append("collectives: there is one process")
    return Determinism(tried, untried)


def _collectives(group: Group) -> list[Tried]:
    """An all_reduce again, with ranks in another order, and in two messages, as with other buckets."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    make = torch.Generator().manual_seed(1)
    # Each rank's numbers of another size, so that the order of the sum is seen in many of them.
    all_ranks = torch.randn(size, SIZE, generator=make) * 10.0 ** torch.arange(size).view(-1, 1)

    def reduced(number: int, parts: int = 1) -> torch.Tensor:
        mine = all_ranks[number].clone().to(device_of_messages(group))
        for part in mine.chunk(parts):
            dist.all_reduce(part, group=group)
        return mine

    tried = [
        _twice("an all_reduce, again", lambda _: reduced(rank)),
        _twice(
            "an all_reduce, the same numbers on other ranks",
            lambda turn: reduced((rank + turn) % size),
        ),
        _twice("an all_reduce in 3 messages, not in one", lambda turn: reduced(rank, 1 + 2 * turn)),
    ]
    mine = reduced(rank)
    first = mine.clone()
    dist.broadcast(first, group=group, group_src=0)
    return [*tried, *_on_all_ranks("the result of an all_reduce, on all ranks", mine, first, group)]


def _on_all_ranks(what: str, mine: torch.Tensor, first: torch.Tensor, group: Group) -> list[Tried]:
    off = torch.tensor([_off(mine, first)], dtype=torch.double, device=mine.device)
    dist.all_reduce(off, op=dist.ReduceOp.MAX, group=group)
    return [Tried(what, off.item() == 0.0, off.item())]


def _twice(what: str, compute: Callable[[int], torch.Tensor]) -> Tried:
    one, other = compute(0), compute(1)
    return Tried(what, torch.equal(one, other), _off(one, other))


def _off(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / one.abs().max())


def _drawn(_: int) -> torch.Tensor:
    return torch.randn(16, generator=torch.Generator().manual_seed(3))


def _in_parts(x: torch.Tensor, parts: int) -> torch.Tensor:
    return torch.stack([part.sum(1) for part in x.chunk(parts, 1)]).sum(0)


def _with_threads(number: int, x: torch.Tensor) -> torch.Tensor:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        return x.sum()
    finally:
        torch.set_num_threads(before)


class deterministic:
    """Seeds torch, random and numpy, where it is loaded, and sets what torch offers for the same bits in each run.

    From the call on; as a context, until its end, where the settings (not the random numbers) become what they were.
    A kernel that has no deterministic form raises RuntimeError then. A GPU's matrix products need
    CUBLAS_WORKSPACE_CONFIG, which is read when the first one runs: call this before.

    seed: None leaves the random numbers alone;  warn_only: where there is no deterministic form, warn
    """

    def __init__(self, seed: int | None = 0, warn_only: bool = False) -> None:
        cudnn: Any = torch.backends.cudnn
        self._before = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            (cudnn.deterministic, cudnn.benchmark),
            os.environ.get(_WORKSPACE[0]),
        )
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        cudnn.deterministic, cudnn.benchmark = True, False
        os.environ.setdefault(*_WORKSPACE)
        if seed is not None:
            torch.manual_seed(seed)
            random.seed(seed)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(seed % 2**32)

    def __enter__(self) -> deterministic:
        return self

    def __exit__(self, *_: object) -> None:
        enabled, warn_only, of_cudnn, workspace = self._before
        cudnn: Any = torch.backends.cudnn
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        cudnn.deterministic, cudnn.benchmark = of_cudnn
        if workspace is None:
            os.environ.pop(_WORKSPACE[0], None)
