"""What the tools have in common: begun and ended in each rank, and asked when all that the ranks saw is together."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Protocol

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from dtcourse.torch_private import without_modes


class Watch(Protocol):
    """A tool's part in one rank.

    name: the tool's, as it is shown
    """

    name: str

    def begin(self) -> None:
        """The program begins."""

    def end(self) -> Any:
        """It is over, or has raised. Returns what was seen, which can be sent to another process."""


# From what was seen on each rank, by rank, and what each rank returned: a sentence, or None.
Says = Callable[[list[Any], list[Any]], str | None]


def unseen(look: Callable[..., None]) -> Callable[..., None]:
    """A look of a tool, a method, whose own operations no tool is to see: it takes a tenth of the time then."""

    @wraps(look)
    def looks(*args: Any, **kwargs: Any) -> None:
        with without_modes():
            look(*args, **kwargs)

    return looks


@contextmanager
def watched(folder: Path, watches: Sequence[type[Watch]]) -> Iterator[None]:
    """Each tool watches what this rank does inside, and writes what it has seen into `folder`, however that ends."""
    begun = [watch() for watch in watches]
    files = [folder / f"{watch.name}-{os.environ.get('RANK', 0)}" for watch in begun]
    for watch, file in zip(begun, files, strict=True):
        file.unlink(missing_ok=True)  # what an earlier run has left is not this one's
        watch.begin()
    try:
        yield
    finally:
        for watch, file in reversed([*zip(begun, files, strict=True)]):
            seen = pickle.dumps(watch.end())
            folder.mkdir(parents=True, exist_ok=True)
            file.write_bytes(seen)


def seen_by_all(
    folder: Path, watches: Sequence[type[Watch]], world_size: int
) -> dict[str, list[Any]]:
    """By tool, what it saw on each rank; only of tools that have seen all ranks to their end."""
    found = {}
    for watch in watches:
        files = [folder / f"{watch.name}-{rank}" for rank in range(world_size)]
        if all(file.exists() for file in files):
            found[watch.name] = [pickle.loads(file.read_bytes()) for file in files]
    return found


def sentences(
    says: Mapping[type[Watch], Says], seen: Mapping[str, list[Any]], results: list[Any]
) -> dict[str, str | None]:
    """What each tool says of what it saw: a sentence, or None, also where it has not seen all ranks."""
    return {
        watch.name: say(seen[watch.name], results) if watch.name in seen else None
        for watch, say in says.items()
    }


class Roots:
    """The modules that a program calls itself, not through another module: what it has for models."""

    def __init__(self, entered: Callable[[nn.Module, Any], None] | None = None) -> None:
        self.found: dict[int, nn.Module] = {}
        self.inside: list[nn.Module] = []
        self._entered = entered
        self._handles: list[Any] = []

    def begin(self) -> None:
        """From now on."""
        self._handles = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]

    def end(self) -> None:
        """No more."""
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        if not self.inside:
            self.found[id(module)] = module
            if self._entered is not None:
                self._entered(module, args)
        self.inside.append(module)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self.inside and self.inside[-1] is module:
            self.inside.pop()

    def names(self) -> dict[int, str]:
        """By the id of a parameter its name, as the model without its wrapper has it."""
        named: dict[int, str] = {}
        for number, root in enumerate(self.found.values()):
            for name, parameter in root.named_parameters():
                plain = name.removeprefix("module.").replace("_orig_mod.", "")
                known = plain in named.values()
                named.setdefault(id(parameter), f"{plain} of model {number}" if known else plain)
        return named
