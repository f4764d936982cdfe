"""A save is killed at each of its operations, and the power is cut after each: at most the unfinished one is lost.

The processes here are killed for real, split off from one that has the course loaded. A power cut is what the record of
the operations leaves by POSIX' rules (power_cuts.py), with each fsync left out once: then a checkpoint must be lost.
"""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dtcourse import launch
from dtcourse.checkpoint import files
from dtcourse.fault_tolerance import folders, mark
from dtcourse.fault_tolerance.power_cuts import outcomes, write_to

BEFORE = (1, 2)  # steps that are complete
NEW = 3  # the next save, which may remove the first


def content(step: int) -> dict[str, bytes]:
    return {"model/weights": b"%d" % step * 40, "rank-0.pt": b"random state %d" % step}


def save(root: Path, step: int, keep: int = 2) -> None:
    """What Checkpoints.save does, of one rank."""
    aside = folders.begin(root, step)
    files.make_folder(aside / "model")
    for name, data in content(step).items():
        files.write_bytes(aside / name, data)
    names = mark.names_in(aside)
    folders.finish(aside, mark.Mark(step, mark.sums_of(aside, names), {"run": "a test"}))
    folders.prune(root, keep)


def found(root: Path) -> int:
    """The step of the newest complete checkpoint, read in full; every other one with a name is whole too."""
    for step in folders.steps(root):
        folder = root / folders.name_of(step)
        assert folders.checked(folder).step == step
        assert {n: (folder / n).read_bytes() for n in mark.names_in(folder)} == content(step)
    return folders.steps(root)[-1]


@dataclass
class Disk:
    """A folder with two checkpoints, and the record of saving a third."""

    top: Path
    before: Path
    record: list[files.Operation]
    known: dict[str, object] = field(default_factory=dict)

    def losses(self, record: list[files.Operation]):
        """What goes wrong: (operations before the cut, what a resumed run finds)."""
        for cut in range(len(record), -1, -1):
            right = (NEW,) if cut == len(record) else (BEFORE[-1], NEW)
            for left in outcomes(record[:cut], self.top, self.before, seed=cut):
                if self.finds(left) not in right:
                    yield cut, self.finds(left)

    def finds(self, left):
        if str(left) not in self.known:
            place = self.top.with_name("after")
            place.mkdir()
            write_to(place, left)
            try:
                self.known[str(left)] = found(place / "runs")
            except (ValueError, AssertionError, IndexError, OSError) as why:
                self.known[str(left)] = why
            shutil.rmtree(place)
        return self.known[str(left)]


@pytest.fixture(params=[2, 3], ids=["removing one", "removing none"])
def disk(tmp_path, request):
    made = Disk(tmp_path / "disk", tmp_path / "before", [])
    for step in BEFORE:
        save(made.top / "runs", step)
    shutil.copytree(made.top, made.before)
    with files.watched(made.record.append):
        save(made.top / "runs", NEW, request.param)
    made.removes = request.param == 2
    return made


def test_a_power_cut_at_any_moment_loses_at_most_the_unfinished_checkpoint(disk):
    kinds = [operation.kind for operation in disk.record]
    assert kinds.count("write") == kinds.count("fsync") == kinds.count("create") == 3
    assert kinds.count("rename") == 1 + disk.removes
    assert kinds.count("fsync folder") == 3 + disk.removes
    assert found(disk.top / "runs") == NEW
    assert folders.steps(disk.top / "runs") == [*BEFORE, NEW][disk.removes :]
    assert list(disk.losses(disk.record)) == []


def test_each_fsync_is_needed_and_what_comes_before_it(disk):
    """A save without it loses a checkpoint to a power cut, and the replay sees it."""
    harmless = [
        number
        for number, operation in enumerate(disk.record)
        if "fsync" in operation.kind
        and not any(disk.losses(disk.record[:number] + disk.record[number + 1 :]))
    ]
    # Where an old one is removed, the folder of all is synced once more, before its first file goes.
    of_all = [
        n for n, o in enumerate(disk.record) if o.path == disk.top / "runs" and "fsync" in o.kind
    ]
    assert harmless == of_all[:-1]
    # The name before the last bytes: as in "rename, then write the rest".
    rename = next(n for n, o in enumerate(disk.record) if o.kind == "rename")
    early = disk.record[: rename - 1] + disk.record[rename:]
    assert any(disk.losses(early))


class Killer:
    """Lets so many operations pass, and kills this process before the next."""

    def __init__(self, passing: int) -> None:
        self.passing = passing

    def __call__(self, operation: files.Operation) -> None:
        if not self.passing:
            os.kill(os.getpid(), signal.SIGKILL)
        self.passing -= 1


def kill_at_each(before: Path, here: Path) -> list[str]:
    """In a rank: splits off a process per operation, which is killed before it; how each ended."""
    ended = []
    while not ended or ended[-1] != "saved":
        number = len(ended)
        root = shutil.copytree(before / "runs", here / f"killed-{number}")
        if (child := os.fork()) == 0:
            try:
                with files.watched(Killer(number)):
                    save(root, NEW)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        ended.append(f"killed by {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "saved")
    return ended


@pytest.mark.parametrize("disk", [2], indirect=True)
def test_a_process_killed_at_each_operation_loses_at_most_the_unfinished_checkpoint(disk, tmp_path):
    said = launch(kill_at_each, 1, disk.before, tmp_path, init=False)[0]
    assert said == [f"killed by {int(signal.SIGKILL)}"] * len(disk.record) + ["saved"]
    rename = next(n for n, o in enumerate(disk.record) if o.kind == "rename")
    for number in range(len(said)):
        left = tmp_path / f"killed-{number}"
        there = (
            NEW if number > rename else BEFORE[-1]
        )  # where it dies at the rename, that has not happened
        assert found(left) == there
        folders.sweep(left)
        assert not [name for name in os.listdir(left) if name.startswith(".")]
        if number in (0, rename - 1, rename, rename + 1, len(disk.record) - 1):
            save(left, NEW + 1)  # and the run goes on
            assert folders.steps(left) == [there, NEW + 1]
