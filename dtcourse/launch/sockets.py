"""Where the sockets of this user's processes lie: a folder for each process, which goes with it.

A process that is killed cannot remove its own. So each holds a lock on a file in its folder. The system lets go of that
when the process ends, however it ends, and whoever makes a folder removes those that nobody holds any more.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing import util
from pathlib import Path

PREFIX = "dtcourse-sock-"
# Bytes of a socket's path, by the system's own structure, with one for its end.
LONGEST_PATH = 104 if sys.platform == "darwin" else 108
NEEDED = len(f"/{PREFIX}xxxxxxxx/xxxxxxxx")  # for the folder and the socket
NEW = 60.0  # seconds: a folder as young as this may not have its lock yet
_folders: dict[int, Path] = {}  # by process


def free_address() -> str:
    """A path where a socket may listen, in a folder that nobody else can open.

    The folder is in TMPDIR, or in /tmp where TMPDIR is too long for a socket's path, as clusters' often is.
    """
    folder = _folders.get(os.getpid())
    if folder is None or not folder.is_dir():
        folder = _folders[os.getpid()] = _make_folder()
    return str(folder / secrets.token_hex(4))


def _make_folder() -> Path:
    usual = tempfile.gettempdir()
    base = usual if len(os.fsencode(usual)) + NEEDED < LONGEST_PATH else "/tmp"
    try:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=base))
    except OSError as error:
        if base == usual:
            raise
        raise OSError(
            error.errno,
            f"a socket's path has fewer than {LONGEST_PATH} bytes, and TMPDIR ({usual}) leaves no room for its name; "
            f"in /tmp none can be made either ({error.strerror}): set TMPDIR to a folder with a shorter path before "
            "the notebook starts",
        ) from None
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with suppress(
        OSError
    ):  # a file system without locks: nobody removes a folder there but its own process
        fcntl.flock(lock, fcntl.LOCK_EX)  # as long as this process lives
    util.Finalize(None, shutil.rmtree, args=(folder, True), exitpriority=-100)  # type: ignore[attr-defined]
    sweep(Path(base))
    return folder


def sweep(base: Path) -> None:
    """Removes the folders there of those processes of this user that are gone."""
    with suppress(OSError), os.scandir(base) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):  # another process was faster
                    _remove_if_left(Path(entry.path), entry.stat(follow_symlinks=False))


def _remove_if_left(folder: Path, about: os.stat_result) -> None:
    if about.st_uid != os.geteuid() or time.time() - about.st_mtime < NEW:
        return
    lock = os.open(folder / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder)
    finally:
        os.close(lock)
