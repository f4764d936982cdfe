"""One job's folder: private, and read while it is written.

The notebook and the nodes meet in files. What is unpickled from a file runs as us, so nobody else may be able to write
one: the folder belongs to us and is closed to everybody else, and that is looked at before anything is read.

A log is a file of frames, one pickled object each, written by one process and read by others while it grows. Network
file systems promise that who opens a file after its writer closed it sees what was written (close-to-open
consistency), and no more: so a frame is written between an open and a close, and a
reader opens the file anew each time.
"""

from __future__ import annotations

import os
import pickle
import secrets
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dtcourse.launch import serialization

_LENGTH = struct.Struct("!Q")


def create(parent: Path, name: str) -> Path:
    """A new folder for one job, inside `parent`, which nobody but this user can open."""
    parent = of_jobs(parent)
    try:
        # Never a job's number alone: a cluster that was set up again starts to count from 1.
        when = time.strftime("%Y%m%d-%H%M%S")
        path = parent.resolve() / f"{when}-{name}-{secrets.token_hex(4)}"
        path.mkdir(mode=0o700)
        path.chmod(0o700)
    except OSError as error:
        raise _cannot_be_written(parent, error) from None
    return path


def of_jobs(parent: Path) -> Path:
    """The jobs' folder, made where it is missing, and then for this user alone. ValueError where that cannot be."""
    parent = parent.expanduser()
    made = not parent.exists()
    try:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if made:
            parent.chmod(0o700)  # whatever the umask is
    except OSError as error:
        raise _cannot_be_written(parent, error) from None
    return parent


def _cannot_be_written(parent: Path, error: OSError) -> ValueError:
    return ValueError(
        f"the jobs' folder {parent} cannot be written ({error.strerror}): name another one as `folder` in cluster.toml"
    )


def require_private(path: Path) -> None:
    """PermissionError where somebody else could have written into this folder."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{path} is no folder of a job")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(
            f"{path} belongs to user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}: only a folder "
            "that is yours alone (0700) is read, since reading it runs what stands in it"
        )


class Writer:
    """Appends frames to a log. Safe from several threads of one process."""

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()

    def write(self, obj: Any) -> None:
        """One frame, whole and on its way to the file server when this returns."""
        stream, buffers = serialization.serialize(obj)
        header = pickle.dumps((stream, [b.nbytes for b in buffers]))
        with self._lock, open(self.path, "ab") as file:
            file.write(_LENGTH.pack(len(header)) + header)
            for buffer in buffers:
                file.write(buffer)


class Reader:
    """Reads the frames of a log that grows."""

    def __init__(self, path: Path) -> None:
        self.path, self._offset = path, 0

    def new(self) -> Iterator[Callable[[], Any]]:
        """What has been written, whole, since the last time. Each is unpacked by calling it."""
        with open(self.path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            while self._offset + _LENGTH.size <= size:
                file.seek(self._offset)
                (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
                end = self._offset + _LENGTH.size + length
                if end > size:
                    return
                stream, sizes = pickle.loads(file.read(length))
                if end + sum(sizes) > size:
                    return
                buffers = [bytearray(n) for n in sizes]
                for buffer in buffers:
                    file.readinto(buffer)
                self._offset = end + sum(sizes)
                yield _unpacker(stream, buffers)


def _unpacker(stream: bytes, buffers: list[bytearray]) -> Callable[[], Any]:
    return lambda: pickle.loads(stream, buffers=buffers)
