"""The notebook's presence: while it lives its jobs may run, and no job of a launch outlives it.

Three things see to that, since a notebook can end in many ways:

- A *guard*, a shell of three lines outside the notebook's own processes, holds the other end of a pipe. When the
  notebook's process is gone, however it went (SIGTERM of JupyterHub's culler, kill -9, a restarted kernel, its own
  end), the pipe ends and the guard cancels the job, pending or running.
- A *heartbeat*: a thread of the notebook counts in a file of the job's folder. The agents look at it, and end after
  PATIENCE seconds without a new number (ends.py). It is for a login node that dies with the guard.
- `--deadline`: Slurm itself removes a job that still waits when nobody can wait for it any more (slurm.py).

Batch jobs (batch.py) have none of them: they are meant to go on without a notebook.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

HEARTBEAT = "notebook"  # the file, in the job's folder
PATIENCE = 60.0  # seconds without a heartbeat after which the nodes believe the notebook gone

# Nobody's child, so that what ends the notebook's children (ipykernel does) does not end it; deaf to what is sent to
# all processes of a session. `read` fails when the pipe ends without a word.
_GUARD = 'exec 3<&0; (trap "" TERM INT HUP; read -r word <&3 || scancel --quiet "$1") < /dev/null &'


class Presence:
    """For as long as the `with` block lasts, this process is there for one job."""

    def __init__(self, folder: Path, job: str, guarded: bool = True) -> None:
        self.folder, self.job = folder, job
        self._pipe = _guard(job) if guarded else None

    def __enter__(self) -> Presence:
        _beats.add(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """The job needs nobody any more."""
        _beats.remove(self.folder)
        if self._pipe is not None:
            with suppress(OSError):  # somebody has killed the guard
                os.write(self._pipe, b"over\n")
            os.close(self._pipe)
            self._pipe = None

    def forget(self) -> None:
        """In a process forked off this one: it is not its job."""
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None


def _guard(job: str) -> int | None:
    """Starts a guard; returns our end of its pipe. None where there is no room for one: the heartbeat is left."""
    theirs, ours = os.pipe()
    try:
        subprocess.run(
            ["sh", "-c", _GUARD, "sh", job],
            stdin=theirs,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        os.close(ours)
        return None
    finally:
        os.close(theirs)
    return ours


class _Beats:
    """Counts in the folders of the jobs that this process is there for, in a thread of its own."""

    def __init__(self) -> None:
        self.folders: set[Path] = set()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, folder: Path) -> None:
        with self._lock:
            self.folders.add(folder)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._beat, name="dtcourse-heartbeat", daemon=True
                )
                self._thread.start()
        self._changed.set()

    def remove(self, folder: Path) -> None:
        with self._lock:
            self.folders.discard(folder)
        self._changed.set()

    def _beat(self) -> None:
        for number in itertools.count():
            with self._lock:
                folders = list(self.folders)
                if not folders:
                    self._thread = None
                    return
            for folder in folders:
                # a full disk is said by what cannot be written besides
                with suppress(OSError), open(folder / HEARTBEAT, "w", opener=_private) as file:
                    file.write(f"{os.getpid()} {number}")
            self._changed.wait(PATIENCE / 6)
            self._changed.clear()


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


_beats = _Beats()


def _forget() -> None:
    """In a process forked off this one: its parent's jobs are not its own, and the thread is not here."""
    global _beats
    _beats = _Beats()


os.register_at_fork(after_in_child=_forget)


class Listener:
    """The nodes' side: whether the notebook has counted on within `patience` seconds. None: nobody is listened to."""

    def __init__(self, folder: Path, patience: float | None, now: float) -> None:
        self._file, self.patience = folder / HEARTBEAT, patience
        self._last: Any = None
        self._since = now

    def is_silent(self, now: float) -> bool:
        """Looks. now: seconds of a clock that only goes on."""
        if self.patience is None:
            return False
        with suppress(OSError):
            # Opened anew each time, as network file systems want it; read as text, never unpickled.
            heard = self._file.read_bytes()
            if heard != self._last:
                self._last, self._since = heard, now
        return now - self._since > self.patience
