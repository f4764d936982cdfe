"""One job's folder: private, and read while it is written.

The notebook and the nodes meet in files. What is unpickled from a file runs as us, so nobody else may be able to write
one. Two things see to that. The folder belongs to us and is closed to everybody else, and what is read from it is read
through the descriptor at which that was looked at: whoever puts another folder in its place changes nothing. And
nobody else may write to a folder above it (without the sticky bit), or they could do just that.

A log is a file of frames, one pickled object each, written by one process and read by others while it grows. Network
file systems promise that who opens a file after its writer closed it sees what was written (close-to-open consistency),
and no more: so a frame is written between an open and a close, and a reader opens the file anew each time.
"""

from __future__ import annotations

import errno
import grp
import os
import pickle
import pwd
import secrets
import stat
import struct
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from dtcourse.launch import serialization

_LENGTH = struct.Struct("!Q")


def create(parent: Path, name: str) -> Path:
    """A new folder for one job, inside `parent`, which nobody but this user can open."""
    parent = of_jobs(parent)
    # Never a job's number alone: a cluster that was set up again starts to count from 1.
    when = time.strftime("%Y%m%d-%H%M%S")
    path = parent / f"{when}-{name}-{secrets.token_hex(4)}"
    try:
        path.mkdir(mode=0o700)
        path.chmod(0o700)
    except OSError as error:
        raise cannot_be_written(parent, error) from None
    return path


def of_jobs(parent: Path) -> Path:
    """The jobs' folder under its real path, made where it is missing, and then for this user alone.

    ValueError where that cannot be, or where somebody else could put a folder in the place of one of its folders.
    """
    parent = parent.expanduser()
    try:
        parent = parent.resolve()
        for folder in reversed([f for f in (parent, *parent.parents) if not f.exists()]):
            folder.mkdir(mode=0o700)
            folder.chmod(0o700)  # whatever the umask is
        if not parent.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        require_guarded(parent)
    except OSError as error:
        raise cannot_be_written(parent, error) from None
    return parent


def cannot_be_written(parent: Path, error: OSError) -> ValueError:
    """The same error, with the folder and what to do."""
    return ValueError(
        f"the jobs' folder {parent} cannot be written ({error.strerror}): name another one as `folder` in cluster.toml"
        + (", or make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "")
    )


def require_guarded(parent: Path) -> None:
    """ValueError where somebody else could exchange what lies in this folder, or the folder itself.

    Who may write to a folder without the sticky bit may rename what is in it, and the owner of a folder may always.
    Owners that are trusted: this user, root, and who owns the course's own files, which run as this user anyway.
    """
    # In a user namespace, root's folders belong to whom / belongs to.
    trusted = {os.geteuid(), 0, os.stat("/").st_uid, os.stat(__file__).st_uid}
    for folder in (parent, *parent.parents):
        status = os.stat(folder)
        mode = stat.S_IMODE(status.st_mode)
        if status.st_uid not in trusted:
            who, advice = f"belongs to {_user(status.st_uid)}", ""
        elif not mode & stat.S_ISVTX and (mode & stat.S_IWOTH or _by_others_of_the_group(status)):
            who = f"may be written by others (mode {mode:04o})"
            advice = f"close it (chmod go-w {folder}), or "
        else:
            continue
        raise ValueError(
            f"the jobs' folder {parent} is not safe: {folder} {who}, so somebody else could put a folder in the place "
            f"of a job's and run code as you. To be safe, {advice}name another one as `folder` in cluster.toml"
        )


def _by_others_of_the_group(status: os.stat_result) -> bool:
    """Whether its group may write to it, and has others in it. A user's private group has the user's name."""
    if not status.st_mode & stat.S_IWGRP or status.st_gid == 0:
        return False
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(status.st_gid)
    except KeyError:
        return True
    private = user.pw_gid == group.gr_gid and group.gr_name == user.pw_name
    return not private or not {*group.gr_mem} <= {user.pw_name}


def _user(number: int) -> str:
    try:
        return f"user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"user {number}"


class PrivateFolder:
    """A folder that was opened once, and that nobody else can have written to at that moment.

    PermissionError where somebody else could. What is opened in it is opened through its descriptor: another folder
    that takes its name is not seen.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise PermissionError(f"{path} is no folder of a job") from None
            raise
        weakref.finalize(self, os.close, self._fd)
        status = os.fstat(self._fd)
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise PermissionError(
                f"{path} belongs to {_user(status.st_uid)} with mode {stat.S_IMODE(status.st_mode):04o}: only a "
                "folder that is yours alone (0700) is read, since reading it runs what stands in it"
            )

    def names(self) -> list[str]:
        """What is in it. Listing a folder makes a network file system look for new names."""
        return os.listdir(self._fd)

    def touch(self, name: str) -> None:
        """Gives a file in it the present time."""
        os.utime(name, dir_fd=self._fd, follow_symlinks=False)

    def open(self, name: str, flags: int = os.O_RDONLY) -> BinaryIO:
        """A file in it, which is no link and is ours. A new one is ours alone, whatever the umask is."""
        flags |= (
            os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        )  # a pipe's other end is not waited for
        file = os.fdopen(
            os.open(name, flags, 0o600, dir_fd=self._fd), "ab" if flags & os.O_APPEND else "rb"
        )
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            file.close()
            raise PermissionError(
                f"{self.path / name} belongs to {_user(status.st_uid)}: only a file of your own is read"
            )
        return file


def require_private(path: Path) -> None:
    """PermissionError where somebody else could have written into this folder."""
    PrivateFolder(path)


class Writer:
    """Appends frames to a log. Safe from several threads of one process."""

    def __init__(self, path: Path) -> None:
        self.path, self._folder, self._lock = path, PrivateFolder(path.parent), threading.Lock()

    def write(self, obj: Any) -> None:
        """One frame, whole and on its way to the file server when this returns."""
        stream, buffers = serialization.serialize(obj)
        header = pickle.dumps((stream, [b.nbytes for b in buffers]))
        append = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        try:
            with self._lock, self._folder.open(self.path.name, append) as file:
                file.write(_LENGTH.pack(len(header)) + header)
                for buffer in buffers:
                    file.write(buffer)
        except OSError as error:
            error.filename = str(
                self.path
            )  # the system's own sentence names no file that is open already
            raise

    @contextmanager
    def beating(self, seconds: float) -> Iterator[None]:
        """Gives the file a new time so often, from a thread of its own: a sign that its writer lives."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(seconds):
                with suppress(OSError):  # it has no word for it; what is written next says so
                    self._folder.touch(self.path.name)

        threading.Thread(target=beat, name="dtcourse-beat", daemon=True).start()
        try:
            yield
        finally:
            over.set()


class Reader:
    """Reads the frames of a log that grows.

    sign: its length and its time at the last look; another one means that its writer lives
    """

    def __init__(self, path: Path) -> None:
        self.path, self._folder, self._offset = path, PrivateFolder(path.parent), 0
        self.sign = (0, 0)

    def new(self) -> Iterator[Callable[[], Any]]:
        """What has been written, whole, since the last time. Each is unpacked by calling it."""
        for stream, buffers in self.frames():
            yield partial(pickle.loads, stream, buffers=buffers)

    def frames(self) -> Iterator[tuple[bytes, list[bytearray]]]:
        """As `new`, packed."""
        with self._folder.open(self.path.name) as file:
            status = os.fstat(file.fileno())
            size = status.st_size
            self.sign = size, status.st_mtime_ns
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
                    file.readinto(buffer)  # type: ignore[attr-defined]
                self._offset = end + sum(sizes)
                yield stream, buffers
