"""What an answer's save and find are given to do, in its own process: folders, damage, power cuts made real.

Checkpoints here are of several files, in a folder and one below it, as ranks would write them. All that passes
checkpoint/files.py is recorded; a power cut's ends are computed by the judge and sent back to be looked at.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dtcourse.checkpoint import files

Save = Callable[[Path, int, Callable[[Path], None]], object]
Newest = Callable[[Path], Any]
# An Operation as data that travels back: bytes go as text, a character each.
Told = tuple[str, tuple[str, ...], str, tuple[str, ...] | None]


def content(step: int) -> dict[str, bytes]:
    """The files of a checkpoint. Of each step they are others, and of the same sizes."""
    return {
        name: f"{name} after step {step:04d};".encode() * 20
        for name in ("model/part-0", "model/part-1", "random")
    }


def fill(step: int) -> Callable[[Path], None]:
    """What writes these files into a folder, each of them synced; names and folders are not."""

    def write(folder: Path) -> None:
        files.make_folder(folder / "model")
        for name, data in content(step).items():
            files.write_bytes(folder / name, data)

    return write


@contextmanager
def a_folder() -> Iterator[Path]:
    """A new one, gone afterwards."""
    top = Path(tempfile.mkdtemp())
    try:
        yield top
    finally:
        shutil.rmtree(top, ignore_errors=True)


def tree(folder: Path) -> dict[str, str]:
    """All files below it by their paths."""
    inside = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): as_text(path.read_bytes()) for path in inside}


def as_text(data: bytes) -> str:
    """A character for each byte."""
    return data.decode("latin-1")


def found(newest: Newest, root: Path) -> Any:
    """What an answer finds: (step, {name: what is in it} of a checkpoint's files), or None."""
    said = newest(root)
    if said is None:
        return None
    step, folder = said
    held = tree(Path(folder))
    return step, {name: held.get(name) for name in content(0)}


def recorded(
    save: Save, newest: Newest, steps: list[int]
) -> tuple[list[Told], list[int], dict[str, str], list[Any]]:
    """Saves after these steps: (the operations; how many at each save's end; all files; what is found after each)."""
    with a_folder() as top:
        record: list[files.Operation] = []
        ends, finds = [], []
        root = top / "runs"
        root.mkdir()
        for step in steps:
            with files.watched(record.append):
                save(root, step, fill(step))
            ends.append(len(record))
            finds.append(found(newest, root))

        def below(path: Path) -> tuple[str, ...]:
            return Path(path).relative_to(root).parts

        told = [
            (o.kind, below(o.path), as_text(o.data), below(o.target) if o.target else None)
            for o in record
        ]
        return told, ends, tree(root), finds


def _make(folder: Path, left: Mapping[str, Any]) -> None:
    for name, what in left.items():
        if isinstance(what, bytes):
            (folder / name).write_bytes(what)
        else:
            (folder / name).mkdir()
            _make(folder / name, what)


def looked_at(save: Save, newest: Newest, ends: list[Any], then: int | None) -> list[Any]:
    """What is found in each of these folders; with `then`, after a save of that step there. An error's name is text."""
    finds = []
    for left in ends:
        with a_folder() as root:
            _make(root, left)
            try:
                if then is not None:
                    save(root, then, fill(then))
                finds.append(found(newest, root))
            except (OSError, ValueError) as error:
                finds.append(f"{type(error).__name__}")
    return finds
