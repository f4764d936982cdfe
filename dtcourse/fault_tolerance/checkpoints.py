"""Checkpoints of a run whose ranks write them together: each appears complete or not at all, and some are kept.

    checkpoints = Checkpoints("runs/7", keep=3)
    checkpoints.save(step, lambda folder, group: checkpoint.save(folder, model, optimizer))
    found = checkpoints.latest()                 # the newest complete one; damaged ones are named, and passed over
    checkpoint.load(found.folder, model, optimizer)

What is written is a function's business: of any technique, of any number of ranks. Here is when it counts. Every rank
writes into one folder aside; each sums up a share of the files and syncs it; then the first rank marks the folder
complete and gives it its name (folders.py). A rank that is killed, a power cut or a full disk in the middle costs the
checkpoint that was being written, and no other.

Bytes: those of what is written, read once more for their checksums. Messages: a few small ones, over a group of its
own, so that a thread can save while the ranks train (background.py).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from dtcourse.checkpoint import files
from dtcourse.checkpoint.checksums import my_share
from dtcourse.fault_tolerance import folders, mark
from dtcourse.fault_tolerance.mark import Mark, NotComplete
from dtcourse.parameters.agreement import raise_on_all_ranks
from dtcourse.parameters.replicas import Group

# Fills a folder. Every rank calls it; its own collectives go over the group that it is given.
Write = Callable[[Path, Group], object]


class NotSaved(OSError):
    """A checkpoint could not be written, on all ranks. Nothing of it is left; the ones before are as they were."""


@dataclass(frozen=True)
class Found:
    """A complete checkpoint: its folder, the step after which it was taken, and what the run said of itself."""

    folder: Path
    step: int
    about: dict[str, Any]


class Checkpoints:
    """A run's checkpoints in one folder, which all ranks share.

    keep:  how many of the newest complete ones stay; the others are removed when a new one is complete
    group: the ranks that write; default: all. Every one of them calls each method, in the same order
    """

    def __init__(self, folder: str | Path, keep: int = 3, group: Group = None) -> None:
        if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
            raise ValueError(f"keep is how many checkpoints stay, 1 or more; got {keep!r}")
        self.folder, self.keep = Path(folder), keep
        ranks = dist.get_process_group_ranks(group if group is not None else dist.group.WORLD)
        self.group = dist.new_group(ranks, backend="gloo")
        self.of_training = dist.new_group(
            ranks, backend="gloo"
        )  # for who asks while a thread saves
        self.is_first = dist.get_rank(self.group) == 0

    # --- saving ---------------------------------------------------------------------------------------------

    def save(self, step: int, write: Write, about: Mapping[str, Any] | None = None) -> Path:
        """Writes the checkpoint after a step, and returns its folder when it is complete and on the disk.

        write: fills the folder that it gets, on all ranks;  about: plain values by name, the same on all ranks, which
               are kept with it

        Raises ValueError on all ranks where there is a checkpoint of that step, NotSaved where it could not be written.
        """
        aside = self.folder / (folders.WRITING + folders.name_of(step))
        self._on_first(lambda: folders.begin(self.folder, step))
        try:
            raise_on_all_ranks(lambda: write(aside, self.group), self.group)
            sums = self._sums(aside)
            complete = Mark(step, sums, dict(about or {}))
            self._on_first(lambda: folders.finish(aside, complete))
        except Exception as error:
            self._give_up(aside)
            raise NotSaved(
                f"the checkpoint after step {step} could not be written to {self.folder}, and nothing of it is left "
                f"there; {self._newest_in_words()}. {type(error).__name__}: {error}"
            ) from error
        self._on_first(self._prune)
        return self.folder / folders.name_of(step)

    def _sums(self, aside: Path) -> mark.Sums:
        """Of all files, each rank's share by itself: it also makes sure that they are on the disk."""

        def share() -> mark.Sums:
            mine = my_share(names, self.group)
            for name in mine:
                files.sync(aside / name)  # whoever has written it, through the door or past it
            return mark.sums_of(aside, mine)

        names = raise_on_all_ranks(lambda: mark.names_in(aside), self.group)
        everyone: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(everyone, raise_on_all_ranks(share, self.group), group=self.group)
        return {name: value for sums in everyone for name, value in sums.items()}

    def _give_up(self, aside: Path) -> None:
        dist.barrier(self.group)
        if self.is_first and aside.exists():
            try:
                files.remove_folder(aside)
            except OSError as error:  # the next save tries again
                warnings.warn(f"{aside} could not be removed: {error}", stacklevel=3)
        dist.barrier(self.group)

    def _prune(self) -> None:
        try:
            folders.prune(self.folder, self.keep)
        except OSError as error:  # the new one is safe; what could not go now goes after the next
            warnings.warn(f"old checkpoints in {self.folder} stay: {error}", stacklevel=3)

    def _newest_in_words(self) -> str:
        kept = folders.steps(self.folder)
        return f"the newest one is after step {kept[-1]}" if kept else "there is none before it"

    # --- finding --------------------------------------------------------------------------------------------

    def latest(self) -> Found | None:
        """The newest complete checkpoint, whose files have been held against their checksums; None: there is none.

        A newer one that is damaged, or has no mark, is passed over: a warning says what is wrong with it, and its name
        becomes damaged-1-step-..., so that its step can be saved again.
        """
        for step in reversed(self.steps()):
            folder = self.folder / folders.name_of(step)
            try:
                found = self._check(folder)
                return Found(folder, found.step, found.about)
            except NotComplete as why:
                other = self._on_first(partial(folders.set_aside, folder))
                if self.is_first:
                    warnings.warn(
                        f"{why}. The checkpoint before it is taken; this one is now {other.name}",
                        stacklevel=2,
                    )
        return None

    def steps(self) -> list[int]:
        """The steps of all checkpoints here, complete or not, the oldest first: as the first rank sees them."""
        return self._first_says(folders.steps(self.folder) if self.is_first else [])

    def at(self, step: int) -> Found:
        """The complete checkpoint after a step. Raises NotComplete, a ValueError, on all ranks where it is none."""
        folder = self.folder / folders.name_of(step)
        if step not in (kept := self.steps()):
            raise NotComplete(f"{self.folder} has no checkpoint after step {step}; it has {kept}")
        found = self._check(folder)
        return Found(folder, found.step, found.about)

    def _check(self, folder: Path) -> Mark:
        """The same answer on all ranks: each looks at a share of the files."""
        said: list[Any] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(said, _complaint(folder, self.group), group=self.group)
        for mine in said:
            if isinstance(mine, str):
                raise NotComplete(mine)
        return said[0]

    def _first_says(self, mine: Any) -> Any:
        said = [mine]
        dist.broadcast_object_list(said, group=self.group, group_src=0)
        return said[0]

    def _on_first(self, act: Callable[[], Any]) -> Any:
        """What it returns there; None on the others."""
        return raise_on_all_ranks(lambda: act() if self.is_first else None, self.group)


def _complaint(folder: Path, group: Group) -> Mark | str:
    try:
        found = mark.read(folder)
        mine = my_share(sorted(found.sums), group)
        mark.check(folder, {name: found.sums[name] for name in mine})
        return found
    except NotComplete as why:
        return str(why)
    except OSError as error:
        return f"{folder} cannot be read: {error}"
