"""The one door for what a checkpoint writes: each open, write, fsync, rename and removal passes it, and can be watched.

A write that has returned is in the memory of the operating system, and not yet on the disk. Two calls bring it there:

    fsync of a file     its bytes
    fsync of a folder   which names are in it: a new file, a rename, a removal

Without them a power cut may leave any part of what was written, and any of the new names without the others, whatever
the order of the calls was. A process that is killed loses less: what it has written stays with the operating system.

    with files.watched(record.append):
        ...                               # record: an Operation for each, told before it is carried out

Who watches sees what a power cut could leave (fault_tolerance/power_cuts.py), or dies at one of them, in a test.
Source: Pillai et al., All File Systems Are Not Created Equal (OSDI 2014).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem

BUFFER = 1 << 20  # bytes that are collected before they are written


@dataclass(frozen=True)
class Operation:
    """One call that changes what is on the disk, or makes sure of it.

    kind:   "make folder", "create", "write", "fsync", "fsync folder", "rename", "remove" or "remove folder"
    path:   of what
    data:   of a write, which goes to the end of the file
    target: of a rename: the new path
    """

    kind: str
    path: Path
    data: bytes = b""
    target: Path | None = None


_watchers: list[Callable[[Operation], object]] = []


@contextmanager
def watched(watcher: Callable[[Operation], object]) -> Iterator[None]:
    """Calls watcher(operation) before each operation of this process, in any of its threads."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


def _tell(kind: str, path: Path, data: Any = b"", target: Path | None = None) -> None:
    for watcher in list(_watchers):
        watcher(Operation(kind, path, bytes(data), target))


class File:
    """A file that is written from its beginning to its end. Its bytes are on the disk when `writing` is over."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path, self._descriptor = path, descriptor
        self._buffer, self._written = bytearray(), 0

    def write(self, data: Any) -> int:
        """Appends bytes. OSError where the disk is full, here or at the end."""
        data = memoryview(data).cast("B")
        self._buffer += data
        if len(self._buffer) >= BUFFER:
            self.flush()
        return len(data)

    def tell(self) -> int:
        """Bytes so far."""
        return self._written + len(self._buffer)

    def flush(self) -> None:
        """Hands what was collected to the operating system."""
        collected, self._buffer = self._buffer, bytearray()
        if collected:
            _tell("write", self.path, collected)
        left = memoryview(collected)
        while left:
            count = os.write(self._descriptor, left)
            self._written += count
            left = left[count:]

    def close(self) -> None:
        """Nothing: `writing` does it."""


@contextmanager
def writing(path: Path, replace: bool = False) -> Iterator[File]:
    """A new file, whose bytes are on the disk when the block ends; its name is not, before `sync_folder`.

    replace: a file of that name is emptied first; else FileExistsError
    """
    _tell("create", path)
    how = os.O_TRUNC if replace else os.O_EXCL
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o666)
    try:
        file = File(path, descriptor)
        yield file
        file.flush()
        _tell("fsync", path)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: Path, data: bytes) -> None:
    """A new file with these bytes."""
    with writing(path) as file:
        file.write(data)


def sync(path: Path) -> None:
    """Brings the bytes of a file to the disk that somebody has written past this door."""
    _tell("fsync", path)
    _fsync(path)


def sync_folder(path: Path) -> None:
    """Brings to the disk which names are in a folder."""
    _tell("fsync folder", path)
    _fsync(path)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """A new folder. FileExistsError where there is one."""
    _tell("make folder", path)
    path.mkdir()


def make_folders(path: Path) -> None:
    """This folder and those above it, where they are missing, on the disk before anything is put into them."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        _tell("make folder", folder)
        folder.mkdir(exist_ok=True)  # another rank may be faster
        sync_folder(folder.parent)


def rename(path: Path, target: Path) -> None:
    """Another name: all of it, or nothing. A file of the new name is replaced, also in one step."""
    _tell("rename", path, target=target)
    path.rename(target)


def remove(path: Path) -> None:
    """Removes a file."""
    _tell("remove", path)
    path.unlink()


def remove_folder(path: Path) -> None:
    """Removes a folder with all that is in it."""
    for inside in sorted(path.iterdir()):
        if inside.is_dir() and not inside.is_symlink():
            remove_folder(inside)
        else:
            remove(inside)
    _tell("remove folder", path)
    path.rmdir()


class WatchedFileSystem(FileSystem):
    """The same door for torch.distributed.checkpoint, whose writer asks a file system for all that it does."""

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        """A file to be read or written: there is no other mode."""
        if mode == "wb":
            with writing(Path(path), replace=True) as file:
                yield file
        else:
            with super().create_stream(path, mode) as stream:
                yield stream

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        """Another name."""
        rename(Path(path), Path(new_path))

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """This folder and those above it."""
        make_folders(Path(path))

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        """Removes a file."""
        remove(Path(path))
