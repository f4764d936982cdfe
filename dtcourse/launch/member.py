"""A rank as its launch sees it, from before it is known what it is to do until it has ended."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from multiprocessing import Pipe
from typing import Any

from dtcourse.launch import rank, serialization
from dtcourse.launch.rank_process import RankProcess


class Member:
    """A rank's process, and our ends of its pipes."""

    def __init__(self, kind: type[RankProcess], name: str) -> None:
        self.channel, channel = Pipe(duplex=True)
        self.output, output = Pipe(duplex=False)
        self.stacks, stacks = Pipe(duplex=False)
        self.process = kind(target=rank.main, args=(channel, output, stacks), name=name)
        try:
            self.process.start()
        except BaseException:
            self._close_ours()
            raise
        finally:
            for end in (channel, output, stacks):
                end.close()

    @property
    def pid(self) -> int:
        """Its process id: waits until there is a process."""
        return self.process.arrived()

    def adopt(self, preparation: dict[str, Any]) -> None:
        """Tells a spare where it is. `has_taken` says whether it heard."""
        with suppress(OSError):  # it died; there will be no answer either
            # The key that lets multiprocessing's processes talk to each other is pickled in the open only as bytes.
            key = bytes(preparation["authkey"])
            serialization.send(self.channel, {**preparation, "authkey": key})

    def has_taken(self, limit: float) -> bool:
        """Whether this spare is there, and has become what `adopt` made it. Waits until `limit` for its answer."""
        try:
            self.process.arrived()
            left = max(0.0, limit - time.monotonic())
            answered = (
                self.channel.poll(left) and serialization.receive(self.channel)()[0] == "taken"
            )
            # It has ended for us, too, where the template has: nobody would tell how it ends.
            return bool(answered) and self.process.exitcode is None
        except (EOFError, OSError):
            return False

    def discard(self) -> None:
        """Ends a spare that nobody will use."""
        # The number of one that has ended may be another process's by now. One of which we know none yet, or whose
        # end nobody would tell, ends by itself when its pipe is closed.
        if self.process.exitcode is None and self.process.pid is not None:
            with suppress(OSError):
                os.kill(self.process.pid, signal.SIGKILL)
        self.process._popen.finalizer()  # type: ignore[attr-defined]
        self._close_ours()

    def discard_all(self) -> None:
        """Ends one that has run a function, and whatever that has started."""
        if self.process.exitcode is None:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        self.discard()

    def forget(self) -> None:
        """In a process forked off this one."""
        self.process.forget()
        self._close_ours()

    def _close_ours(self) -> None:
        for end in (self.channel, self.output, self.stacks):
            end.close()
