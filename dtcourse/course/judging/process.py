"""The process in which an answer runs, from the judge's side: start it, speak with it, watch it,
end it and its children.
"""

from __future__ import annotations

import io
import json
import os
import select
import signal
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dtcourse.course.judging import attempts, limits
from dtcourse.course.judging.requirements import CheckFailed, NoSandbox, Refused, Stopped

START = 90.0  # seconds to import torch, twice, on a busy machine
LARGEST = 512 * 2**20
MARK = "DTCOURSE_SANDBOX"
_MOST_TOLD = 1 << 16  # bytes of attempts that are read
_CODE = "import sys; from dtcourse.course.judging.serving import serve; serve(sys.argv[1])"


class AnswerProcess:
    """One process that serves (serving.serve), and all that it starts.

    front:       what stands before its command: bubblewrap's, or nothing
    environment: all of its environment; MARK in it is this process's alone
    folder:      where it is started
    memory:      bytes for it and its children
    policy:      what is an answer's own
    imports:     modules for its ranks

    It takes seconds to import torch; wait_until_ready before it is spoken with. Raises NoSandbox where the system
    starts no process.
    """

    def __init__(
        self,
        front: list[str],
        environment: dict[str, str],
        folder: Path,
        memory: int,
        policy: dict[str, list[str]],
        imports: list[str],
    ) -> None:
        self.confined = bool(front)
        self.mark = environment[MARK]
        self._memory = memory
        self.told: list[str] = []
        self._watch: limits.Watch | None = None
        requests, self._tell = os.pipe()
        self._hear, replies = os.pipe()
        self._overhear, line = os.pipe()
        os.fchmod(line, 0o622)  # root's answers are somebody else, and open it by its name in /proc
        os.set_blocking(self._tell, False)
        os.set_blocking(self._overhear, False)
        theirs = {"requests": requests, "replies": replies, "line": line}
        tasks = limits.tasks() if self.confined else None
        orders = {**theirs, "memory": memory, "tasks": tasks, "policy": policy, "imports": imports}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when it is ready, or with it
        try:
            # bubblewrap ends with the thread that starts it, so that has to be one that lasts: the main thread.
            self._popen = subprocess.Popen(
                # -P: its folder is the answer's, and no module is imported from there.
                [*front, sys.executable, "-P", "-c", _CODE, json.dumps(orders)],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=tuple(theirs.values()),
                start_new_session=True,
            )
        except OSError as error:  # no memory for one more, or too many of them
            for descriptor in (self._hear, self._tell, self._overhear):
                os.close(descriptor)
            self._errors.close()
            raise NoSandbox(f"the sandbox did not start: {error}") from None
        finally:
            for descriptor in theirs.values():
                os.close(descriptor)

    def wait_until_ready(self) -> None:
        """Until it has imported what answers need; from then on it is held to its limits.

        Raises NoSandbox if it does not say that it is ready. It is closed then.
        """
        if self._watch is not None:
            return
        try:
            self.receive(time.monotonic() + START)
        except CheckFailed as error:
            self._end()
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace").strip().splitlines()
            self.close()
            raise NoSandbox(f"the sandbox did not start: {(said or [str(error)])[-1]}") from None
        except BaseException:
            self.close()
            raise
        self._errors.close()
        self._watch = limits.Watch(self._popen.pid, self.confined, self._memory, self._end)
        self._watch.start()

    def send(self, request: dict[str, Any], until: float) -> None:
        """Put a request to it, before the time `until`. CheckFailed where it does not take it."""
        view = memoryview(frame(request))
        while view:
            self._wait(False, until)
            try:
                view = view[os.write(self._tell, view[: 1 << 16]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise self._gone() from None

    def receive(self, until: float) -> dict[str, Any]:
        """Its next reply. CheckFailed, with a sentence, where none comes before the time `until`."""
        import torch

        (size,) = struct.unpack("!Q", self._read(8, until))
        if size > LARGEST:
            raise Stopped(f"The answer sent back {size >> 20} MB; {LARGEST >> 20} is the most.")
        data = self._read(size, until)
        try:
            reply = torch.load(io.BytesIO(data), weights_only=True)
        except Exception:
            # bytes that are no data: only an answer that writes to our line sends such
            raise Refused("the answer's process sent bytes that are no result") from None
        if not isinstance(reply, dict):
            raise Stopped("The answer's process sent back something that is no result.")
        return reply

    def overheard(self) -> list[str]:
        """What it has told of its attempts so far (attempts.watch), and what it took too much of."""
        told = b""
        with suppress(OSError):  # nothing there, or closed
            while len(told) < _MOST_TOLD and (part := os.read(self._overhear, _MOST_TOLD)):
                told += part
        for words in told.decode(errors="replace").splitlines():
            self.told.append("".join(filter(str.isprintable, words))[: attempts.LONGEST])
        return list(dict.fromkeys(self.told + (self._watch.took if self._watch else [])))

    def too_much(self) -> Stopped | None:
        """What it takes too much of at this moment, or was ended for."""
        if self._watch is None:
            return None
        if not self._watch.ended:
            self._watch.look()
        took = self._watch.ended
        return Stopped(f"The answer tried to {took}, and was stopped.") if took else None

    def close(self) -> None:
        """End it and whatever it started."""
        if self._watch:
            self.too_much()  # once more, for what it has just done
            self._watch.stop()
        self._end()
        self.told = self.overheard()
        self._errors.close()
        for descriptor in (self._hear, self._tell, self._overhear):
            os.close(descriptor)

    def _end(self) -> None:
        if not self.confined:
            end_marked(self._popen.pid, self.mark)
        elif self._popen.poll() is None:
            # With the first process of its namespace the kernel ends all others; bubblewrap leaves when that is done.
            with suppress(ProcessLookupError):
                os.kill(limits.first_inside(self._popen.pid) or self._popen.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(10)

    def _gone(self) -> Stopped:
        return self.too_much() or Stopped(
            "The answer ended its own process, so there is nothing to check."
        )

    def _wait(self, reading: bool, until: float) -> None:
        left = max(0.0, until - time.monotonic())
        ready, writable, _ = select.select(
            [self._hear] if reading else [], [] if reading else [self._tell], [], left
        )
        if not ready and not writable:
            raise Stopped(
                "The answer did not end in its time, and was stopped. Does a loop in it ever end?"
            )

    def _read(self, size: int, until: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            self._wait(True, until)
            part = os.read(self._hear, min(size - len(parts), 1 << 20))
            if not part:
                raise self._gone()
            parts += part
        return bytes(parts)


def frame(message: dict[str, Any]) -> bytes:
    """A message as both sides send it: eight bytes of length, then what torch.save makes of plain data."""
    import torch

    buffer = io.BytesIO()
    torch.save(message, buffer)
    data = buffer.getvalue()
    return struct.pack("!Q", len(data)) + data


def end_marked(pid: int, mark: str) -> None:
    """Kill a process, its descendants, and whoever else carries its mark (a daemon has other parents)."""
    import psutil

    for _ in range(3):
        found = set()
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            found = {root, *root.children(recursive=True)}
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                    found.add(process)
        alive = [
            process
            for process in found
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        ]
        if not alive:
            return
        for process in alive:
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        psutil.wait_procs(alive, timeout=2)


__all__ = ["MARK", "AnswerProcess", "NoSandbox", "end_marked", "frame"]
