"""Saving while training goes on: a copy is taken at once, and a thread writes it.

    with BackgroundCheckpoints(Checkpoints("runs/7"), if_busy="wait") as saving:
        for step in ...:
            ...
            saving.save(step, snapshot)        # returns as soon as the copy is taken
                                               # at the end: waits for what is under way
    save:      copy, then wait for the disk                        the ranks stand still for both
    here:      copy |      train      | train ...
                    |  thread: write, sync, mark, name  |

The ranks stand still for the copy, and for a save before it that is not over (`stalls` has both, in seconds). The copy
takes as much memory as what is saved. The thread has a process group of its own, so its messages and those of training
do not meet. Source: Mohan et al., CheckFreq (FAST 2021); PyTorch's is torch.distributed.checkpoint.async_save.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from dtcourse.fault_tolerance.checkpoints import Checkpoints, Write
from dtcourse.parameters.agreement import on_any_rank

# Copies what is to be saved; returns what writes the copy. Every rank calls it.
Snapshot = Callable[[], Write]


@dataclass(frozen=True)
class Stall:
    """For how long a save kept this rank from training, in seconds: for the save before it, and for its own copy."""

    step: int
    waiting: float
    copying: float


class BackgroundCheckpoints:
    """Saves one checkpoint at a time, in a thread.

    if_busy: a save that comes while another one is under way on any rank "wait"s for it, or is left out: "skip". Both
             give a warning, on the first rank

    Every rank calls each method, in the same order. An error of the thread (NotSaved) is raised on all ranks by the
    next save, by wait() or at the end of the block. Leave the block, or wait(), before the process group goes.
    """

    def __init__(self, checkpoints: Checkpoints, if_busy: str = "wait") -> None:
        if if_busy not in ("wait", "skip"):
            raise ValueError(f'if_busy is "wait" or "skip"; got {if_busy!r}')
        self.checkpoints, self.if_busy = checkpoints, if_busy
        self.stalls: list[Stall] = []
        self._thread: threading.Thread | None = None
        self._step = 0
        self._error: BaseException | None = None

    def save(self, step: int, snapshot: Snapshot, about: Mapping[str, Any] | None = None) -> bool:
        """Takes the copy, and begins to write it. False where it was left out, since another one is under way."""
        began = time.monotonic()
        busy, failed = self._on_any_rank()
        if failed:
            self.wait()
        if busy:
            self._say(step)
            if self.if_busy == "skip":
                return False
            self.wait()
        free = time.monotonic()
        write = snapshot()
        self._step = step
        self._thread = threading.Thread(
            target=self._write, args=(step, write, about), name="dtcourse-checkpoint"
        )
        self.stalls.append(Stall(step, free - began, time.monotonic() - free))
        self._thread.start()
        return True

    def wait(self) -> None:
        """Returns when nothing is under way. Raises what the thread has met, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def __enter__(self) -> BackgroundCheckpoints:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is None:
            self.wait()
        elif self._thread is not None:  # the block's own error is the one to see
            self._thread.join()

    def _on_any_rank(self) -> list[bool]:
        """Whether a save is under way, and whether one has failed: the threads of the ranks are not over at once."""
        alive = self._thread is not None and self._thread.is_alive()
        failed = not alive and self._error is not None
        # Over training's own group: the checkpoints' is the thread's while it runs.
        return on_any_rank([alive, failed], self.checkpoints.of_training, torch.device("cpu"))

    def _write(self, step: int, write: Write, about: Mapping[str, Any] | None) -> None:
        try:
            self.checkpoints.save(step, write, about)
        except BaseException as error:  # told by who waits for it
            self._error = error

    def _say(self, step: int) -> None:
        if self.checkpoints.is_first:
            what = "waits for it" if self.if_busy == "wait" else "is left out"
            warnings.warn(
                f"the checkpoint after step {self._step} is still being written, so the one after step {step} {what}: "
                "save less often, or to a faster disk",
                stacklevel=3,
            )
