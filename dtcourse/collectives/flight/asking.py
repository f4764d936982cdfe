"""When a record is written: a thread waits for SIGUSR1, and looks now and then whether a call has waited for long.

A hang's main thread sits in compiled code, where Python runs no signal handler. But the system's handler, Python's
own, writes the signal's number into a pipe at once, whatever the main thread does, and the thread reads it there.

A rank whose call waits for longer than `hang_after` leaves a file `hang` in the folder besides. The others, who may
not be in a call at all, see it and write theirs.
"""

from __future__ import annotations

import faulthandler
import os
import select
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dtcourse.collectives.flight.record import write
from dtcourse.collectives.flight.recorder import Recorder

LOOK = 0.25  # seconds between two looks, as often as the guard of our collectives has
HANG = "hang"  # the file by which a rank asks all


class Asking:
    """The thread that writes this rank's record when it should be.

    hang_after: seconds that a call may wait;  stacks: where SIGUSR1 is to leave Python's stacks too, a descriptor
    """

    def __init__(
        self, recorder: Recorder, folder: Path, hang_after: float, stacks: int | None
    ) -> None:
        self.recorder, self.folder, self.hang_after = recorder, folder, hang_after
        self._seen = self._asked_at()
        self._said: int | None = None  # the call whose long wait has been told
        self._pipe, self._end = os.pipe()
        os.set_blocking(self._end, False)
        self._closing = False
        self._before: tuple[Any, int] | None = None
        self._stacks = stacks
        if threading.current_thread() is threading.main_thread():
            # Out of the way, and in front of Python's handler again: to unregister puts back what there was before.
            faulthandler.unregister(signal.SIGUSR1)
            handler = signal.signal(signal.SIGUSR1, lambda *_: None)
            self._before = handler, signal.set_wakeup_fd(self._end, warn_on_full_buffer=False)
            if stacks is not None:
                faulthandler.register(signal.SIGUSR1, stacks, all_threads=True, chain=True)
        self._thread = threading.Thread(target=self._loop, daemon=True, name="dtcourse-flight")
        self._thread.start()

    def _loop(self) -> None:
        while True:
            ready, _, _ = select.select([self._pipe], [], [], LOOK)
            said = os.read(self._pipe, 64) if ready else b""
            if self._closing:
                return
            with suppress(OSError):  # the folder is gone or full: the program goes on
                if signal.SIGUSR1 in said:
                    write(self.folder, "SIGUSR1")
                elif not ready:
                    self._look()

    def _look(self) -> None:
        asked = self._asked_at()
        if asked != self._seen:
            self._seen = asked
            write(self.folder, "another rank's wait")
            return
        now = time.monotonic()
        for entry in list(self.recorder.entries):
            since = entry.blocked_since
            if since is None or now - since < self.hang_after or entry.number == self._said:
                continue
            self._said = entry.number
            write(self.folder, f"a wait of {now - since:.0f} s")
            (self.folder / HANG).write_text(f"{time.time_ns()}")
            self._seen = self._asked_at()
            return

    def _asked_at(self) -> int:
        try:
            return (self.folder / HANG).stat().st_mtime_ns
        except OSError:
            return 0

    def close(self) -> None:
        """Ends the thread, and leaves signals as they were."""
        self._closing = True
        if self._before is not None:
            handler, wakeup = self._before
            signal.set_wakeup_fd(wakeup)
            faulthandler.unregister(signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, handler if handler is not None else signal.SIG_DFL)
            if self._stacks is not None:
                faulthandler.register(signal.SIGUSR1, self._stacks, all_threads=True)
        os.write(self._end, b"\0")
        self._thread.join(5.0)
        os.close(self._end)
        os.close(self._pipe)
