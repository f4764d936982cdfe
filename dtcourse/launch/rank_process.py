"""A process split off from the fork server: multiprocessing's, but with a server of ours and without `__main__`."""

from __future__ import annotations

import io
import multiprocessing
import os
import time
from multiprocessing import (
    connection,
    context,
    forkserver,
    popen_forkserver,
    process,
    reduction,
    spawn,
    util,
)
from typing import Any

from dtcourse.launch import server


class _Popen(popen_forkserver.Popen):
    pid: int | None  # type: ignore[assignment]  # None until the server has said it
    is_untold = False  # whether nobody is left to tell how the process ends

    def _launch(self, process_obj: Any) -> None:
        """As in multiprocessing, but with a server of ours, and without importing `__main__` in the child."""
        stream = io.BytesIO()
        context.set_spawning_popen(self)
        try:
            reduction.dump(preparation(process_obj._name), stream)
            reduction.dump(process_obj, stream)
        finally:
            context.set_spawning_popen(None)

        for attempts_left in range(process_obj.attempts - 1, -1, -1):
            try:
                self._split_off(process_obj, stream)
                return
            except (ConnectionError, EOFError):  # the server is just dying: the next one is asked
                if not attempts_left:
                    raise
                time.sleep(0.1)

    def _split_off(self, process_obj: Any, stream: io.BytesIO) -> None:
        self.pid = None
        self.sentinel, writer = process_obj.connect(self._fds)  # type: ignore[attr-defined]
        # The child sees the end of this pipe when we die, however we die.
        self.alive = os.dup(writer)
        self.finalizer = util.Finalize(self, util.close_fds, (self.alive, self.sentinel))  # type: ignore[attr-defined]
        try:
            with open(writer, "wb", closefd=True) as file:
                file.write(stream.getbuffer())
            if process_obj.waits:
                self.arrived()
        except BaseException:
            self.finalizer()
            raise

    def arrived(self) -> int:
        """The process id, as soon as the server has split the process off. OSError or EOFError where it cannot."""
        if self.pid is None:
            self.pid = forkserver.read_signed(self.sentinel)
        return self.pid or 0

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code; None while it runs. The pipe brings the process id first, then the exit code."""
        while self.returncode is None:
            if not connection.wait([self.sentinel], 0 if flag == os.WNOHANG else None):
                return None
            try:
                if self.pid is None:
                    self.arrived()
                else:
                    self.returncode = forkserver.read_signed(self.sentinel)
            # Who would have told is gone; the process itself may be well.
            except (OSError, EOFError):
                self.returncode, self.is_untold = 255, True
        return self.returncode


class RankProcess(process.BaseProcess):
    """A process split off from the server (or from what it has split off: template.py).

    connect:  asks a server for a child
    attempts: how often, while servers are dying
    waits:    for the process id, so that start() raises where there is no process
    """

    # What the rank starts itself (a data loader's workers) starts as anywhere else on this system: as under torchrun.
    _start_method = None
    attempts = 3
    waits = True

    @staticmethod
    def _Popen(process_obj: Any) -> _Popen:
        return _Popen(process_obj)

    @staticmethod
    def connect(descriptors: list[int]) -> tuple[int, int]:
        """The server's own child."""
        return server.connect(descriptors)

    def start(self) -> None:
        """Splits it off. It is not among multiprocessing's active children, for which Python waits when it ends."""
        super().start()
        process._children.discard(self)  # type: ignore[attr-defined]

    def arrived(self) -> int:
        """The process id, once there is one."""
        return self._popen.arrived()  # type: ignore[attr-defined]

    def is_untold(self) -> bool:
        """Whether the server that it came from is gone: it may be well, and nobody will tell how it ends."""
        return self.exitcode is not None and self._popen.is_untold  # type: ignore[attr-defined]

    def forget(self) -> None:
        """In a process forked off this one: lets go of what is the other's."""
        for descriptor in (self._popen.alive, self._popen.sentinel):  # type: ignore[attr-defined]
            os.close(descriptor)


def preparation(name: str) -> dict[str, Any]:
    """What a child needs to know of this process, for spawn.prepare: its directory, sys.path, arguments."""
    decided = multiprocessing.get_start_method(allow_none=True)
    known = spawn.get_preparation_data(name)
    for unwanted in ("init_main_from_name", "init_main_from_path"):
        known.pop(unwanted, None)
    if decided is None:
        # multiprocessing settles on a start method when it is asked for one. Neither the notebook nor the rank has
        # chosen, so both still may.
        del known["start_method"]
        multiprocessing.set_start_method(None, force=True)
    return known
