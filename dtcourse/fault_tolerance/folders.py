"""Checkpoints as folders that appear at once or not at all, whenever the process is killed or the power is cut.

    begin    .writing-step-00000200     made aside, filled by the ranks, each file synced
    finish   complete.json into it; sync it; rename it to step-00000200; sync the folder of all
    prune    step-00000050 becomes .removing-step-00000050; sync; then remove it file by file

The new name is the moment at which the checkpoint is there. Before it, the rename has not happened; after it, all that
it names is on the disk. Each sync is needed, and for each the tests have a power cut that loses a checkpoint where it
is left out. One job at a time writes to a folder.

One process calls these; checkpoints.py has the ranks.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from dtcourse.checkpoint import files
from dtcourse.fault_tolerance import mark
from dtcourse.fault_tolerance.mark import Mark, NotComplete

WRITING, REMOVING = ".writing-", ".removing-"


def name_of(step: int) -> str:
    """Of the checkpoint after a step: names sort as steps do."""
    return f"step-{step:08d}"


def begin(root: Path, step: int) -> Path:
    """A new folder aside, to be filled. Raises ValueError where there is a checkpoint of that step already."""
    files.make_folders(root)
    if (root / name_of(step)).exists():
        raise ValueError(
            f"{root / name_of(step)} exists, and nothing is written into a folder that does: resume after step {step}, "
            "or give this run a folder of its own"
        )
    sweep(root)
    aside = root / (WRITING + name_of(step))
    files.make_folder(aside)
    return aside


def finish(aside: Path, written: Mark) -> Path:
    """What was written aside is complete and on the disk: gives it its name."""
    final = aside.parent / name_of(written.step)
    mark.write(aside, written)
    for folder in [*(path for path in sorted(aside.rglob("*")) if path.is_dir()), aside]:
        files.sync_folder(folder)
    files.rename(aside, final)
    files.sync_folder(aside.parent)
    return final


def prune(root: Path, keep: int) -> None:
    """Removes all but the newest complete ones. None ever has its name and not all of its files.

    What has no mark is no checkpoint of ours: it does not count, and stays.
    """
    old = [step for step in steps(root) if _has_mark(root / name_of(step))][:-keep]
    for step in old:
        files.rename(root / name_of(step), root / (REMOVING + name_of(step)))
    if old:
        files.sync_folder(root)
        sweep(root)


def sweep(root: Path) -> None:
    """Removes what saves and removals that were cut off have left."""
    for folder in sorted(root.glob(".*-step-*")):
        if folder.name.startswith((WRITING, REMOVING)) and folder.is_dir():
            files.remove_folder(folder)


def steps(root: Path) -> list[int]:
    """The steps of all folders with a checkpoint's name, complete or not, the oldest first."""
    found = [re.fullmatch(r"step-(\d{8,})", path.name) for path in root.glob("step-*")]
    return sorted(int(match[1]) for match in found if match)


def set_aside(folder: Path) -> Path:
    """Gives one that is not complete another name, so that a checkpoint of its step can be written again."""
    for number in range(1, 1000):
        other = folder.with_name(f"damaged-{number}-{folder.name}")
        if not other.exists():
            files.rename(folder, other)
            files.sync_folder(folder.parent)
            return other
    raise ValueError(f"{folder.parent} has 999 damaged checkpoints of one step: look at its disk")


def checked(folder: Path) -> Mark:
    """A checkpoint's mark, when all its files have been held against it. Raises NotComplete."""
    found = mark.read(folder)
    mark.check(folder, found.sums)
    return found


def newest(root: Path) -> int | None:
    """The step of the newest complete one, all of its files held against its mark. None: there is none.

    For who looks from outside while nobody writes. The ranks' own answer is Checkpoints.latest.
    """
    for step in reversed(steps(root)):
        with suppress(NotComplete, OSError):
            checked(root / name_of(step))
            return step
    return None


def _has_mark(folder: Path) -> bool:
    try:
        mark.read(folder)
    except NotComplete:
        return False
    return True
