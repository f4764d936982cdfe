"""An answer in a process of its own: started without secrets, held to limits, heard as plain data only.

The judge's side is `Sandbox`; the other side is `serve`, which the process runs. What comes back is read with
torch's weights_only loader, which builds tensors, numbers and text and calls nothing. Whatever the answer does
there (patch the package, print a verdict, leave with exit code 0), the judge compares the numbers that came
back with its own. What an answer could still do is fake what is *measured* in its own ranks; runs.guarded and
taking.take refuse the ways that are known.
"""

from __future__ import annotations

import io
import os
import secrets
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from dtcourse.course.checks.framework import CheckFailed, Refused, Stopped, Unfinished
from dtcourse.course.checks.runs import TIMEOUT, Results, attempt, plain
from dtcourse.course.checks.taking import Piece
from dtcourse.course.places import PACKAGE

MEMORY = 8 * 2**30
START = 60.0  # seconds to import torch on a busy machine
LARGEST = 512 * 2**20
_KINDS = {kind.__name__: kind for kind in (CheckFailed, Refused, Stopped, Unfinished)}
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ")
_MARK = "DTCOURSE_SANDBOX"


def environment(folder: str, mark: str, root: Path) -> dict[str, str]:
    """The environment of an answer's process: no tokens, no keys, a home of its own."""
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    return {
        **kept,
        "HOME": folder,
        "TMPDIR": folder,
        "MPLCONFIGDIR": folder,
        "PYTHONPATH": str(root),
        "OMP_NUM_THREADS": "1",
        _MARK: mark,
    }


class Sandbox:
    """The judge's side of one answer's process. A context manager: leaving it ends every process in it."""

    def __init__(
        self, limit: float = 300.0, memory: int = MEMORY, package: dict[str, bytes] | None = None
    ) -> None:
        self.ends = time.monotonic() + limit
        self.limit = limit
        self.memory = memory
        self.mark = secrets.token_hex(16)
        self.folder = Path(tempfile.mkdtemp(prefix="dtcourse-answer-"))
        (self.folder / "home").mkdir()
        self.root = PACKAGE.parent
        if package is not None:
            self.root = self.folder / "course"
            for name, data in package.items():
                path = self.root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        self.process: subprocess.Popen | None = None
        self.pieces: list[Piece] = []
        self.takes: tuple[str, ...] = ()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def load(self, pieces: list[Piece], takes: tuple[str, ...]) -> None:
        """Give it the code of an answer; it is executed when the first check runs something."""
        self.close()
        self.pieces, self.takes = pieces, takes

    def run(self, step: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> Results:
        """See `framework.Answer.run`. `step` is a module's function: it is sent by its name."""
        network = options.pop("network", None)
        request = {
            "step": [step.__module__, step.__qualname__],
            "world_size": world_size,
            "args": plain(list(args)),
            "options": plain(options),
            "network": None
            if network is None
            else {k: v for k, v in vars(network).items() if not k.startswith("_")},
        }
        if self.process is None:
            self._start()
        reply = self._ask(request, options.get("timeout", TIMEOUT) + 20.0)
        return Results(
            values=list(reply["values"]),
            seconds=float(reply["seconds"]),
            traffic_rows=reply["traffic_rows"],
            traffic_calls=reply["traffic_calls"],
            algorithmic=bool(reply["algorithmic"]),
            event_rows=reply["event_rows"],
        )

    def call(self, step: Callable[..., Any], *args: Any, timeout: float = TIMEOUT) -> Any:
        """See `framework.Answer.call`."""
        return self.run(step, 1, *args, timeout=timeout, init=False)[0]

    def close(self) -> None:
        """End the process and whatever it started."""
        process, self.process = self.process, None
        if process is None:
            return
        _end_all(process.pid, self.mark)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        os.close(self._hear)
        os.close(self._tell)

    # --- the line between the two sides

    def _start(self) -> None:
        theirs_in, self._tell = os.pipe()
        self._hear, theirs_out = os.pipe()
        code = f"from dtcourse.course.checks.sandbox import serve; serve({theirs_in}, {theirs_out})"
        self.process = subprocess.Popen(
            [*_namespace(), sys.executable, "-c", code],
            cwd=self.folder / "home",
            env=environment(str(self.folder / "home"), self.mark, self.root),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        pieces = [[piece.cell, piece.line, piece.code] for piece in self.pieces]
        self._ask({"pieces": pieces, "takes": list(self.takes)}, START + TIMEOUT)

    def _ask(self, request: dict[str, Any], patience: float) -> dict[str, Any]:
        import torch

        buffer = io.BytesIO()
        torch.save(request, buffer)
        data = buffer.getvalue()
        until = min(time.monotonic() + patience, self.ends)
        try:
            self._write(struct.pack("!Q", len(data)) + data, until)
            (size,) = struct.unpack("!Q", self._read(8, until))
            if size > LARGEST:
                raise Stopped(f"The answer sent back {size >> 20} MB; {LARGEST >> 20} is the most.")
            reply = torch.load(io.BytesIO(self._read(size, until)), weights_only=True)
            if not isinstance(reply, dict):
                raise Stopped("The answer's process sent back something that is no result.")
        except CheckFailed:
            self.close()
            raise
        except (EOFError, BrokenPipeError):
            self.close()
            raise Stopped(
                "The answer ended its own process, so there is nothing to check."
            ) from None
        except (
            Exception
        ):  # bytes that are no data: only an answer that writes to our line sends such
            self.close()
            raise Refused("the answer's process sent bytes that are no result") from None
        if "failed" in reply:
            kind = _KINDS.get(str(reply["failed"]), CheckFailed)
            raise kind(str(reply.get("sentence", ""))[:4000])
        return reply

    def _wait(self, reading: bool, until: float) -> None:
        while True:
            left = until - time.monotonic()
            if left <= 0:
                raise Stopped(
                    "The answer did not end in its time, and was stopped. Does a loop in it ever end?"
                )
            if reading:
                ready, _, _ = select.select([self._hear], [], [], min(left, 0.25))
            else:
                _, ready, _ = select.select([], [self._tell], [], min(left, 0.25))
            if ready:
                return
            if self.process and _memory(self.process.pid) > self.memory:
                raise Stopped(
                    f"The answer used more than {self.memory >> 30} GB of memory, and was stopped."
                )

    def _read(self, size: int, until: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            self._wait(True, until)
            part = os.read(self._hear, min(size - len(parts), 1 << 20))
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def _write(self, data: bytes, until: float) -> None:
        os.set_blocking(self._tell, False)
        view = memoryview(data)
        while view:
            self._wait(False, until)
            with suppress(BlockingIOError):
                view = view[os.write(self._tell, view[: 1 << 16]) :]


@cache
def _namespace() -> list[str]:
    """A command in front that hides all other processes from the answer, where Linux lets us; else nothing."""
    command = shutil.which("unshare")
    if command is None:
        return []
    hidden = [
        command,
        "--user",
        "--map-root-user",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
    ]
    done = subprocess.run([*hidden, "true"], capture_output=True, check=False, timeout=30)
    return hidden if done.returncode == 0 else []


def _memory(pid: int) -> int:
    import psutil

    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for process in tree:
        with suppress(psutil.Error):
            info = process.memory_info()
            total += info.rss - getattr(info, "shared", 0)
    return total


def _end_all(pid: int, mark: str) -> None:
    """Kill a process, its descendants, and whoever else carries its mark (a daemon has other parents)."""
    import psutil

    for _ in range(3):
        found = set()
        with suppress(psutil.Error):
            root = psutil.Process(pid)
            found = {root, *root.children(recursive=True)}
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and process.environ().get(_MARK) == mark:
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


# --- the answer's side ---------------------------------------------------------------------------------------


def serve(requests: int, replies: int) -> None:
    """Run in the answer's process: execute its code, then run steps until the line is closed."""
    import resource

    import torch

    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**31, 2**31))
    source = os.fdopen(requests, "rb")
    os.set_inheritable(replies, False)
    functions: dict[str, Any] = {}
    while head := source.read(8):
        request = torch.load(
            io.BytesIO(source.read(struct.unpack("!Q", head)[0])), weights_only=True
        )
        try:
            if "pieces" in request:
                pieces = [Piece(*piece) for piece in request["pieces"]]
                functions = define(pieces, tuple(request["takes"]))
                reply: dict[str, Any] = {}
            else:
                reply = vars(_attempt(request, functions))
        except CheckFailed as error:
            reply = {"failed": type(error).__name__, "sentence": str(error)}
        except BaseException as error:
            reply = {
                "failed": "CheckFailed",
                "sentence": f"It raised {type(error).__name__}: {error}",
            }
        buffer = io.BytesIO()
        torch.save(reply, buffer)
        data = buffer.getvalue()
        view = memoryview(struct.pack("!Q", len(data)) + data)
        while view:
            view = view[os.write(replies, view) :]


def _attempt(request: dict[str, Any], functions: dict[str, Any]) -> Results:
    import importlib

    module, name = request["step"]
    step = getattr(importlib.import_module(module), name)
    options = dict(request["options"])
    if request["network"] is not None:
        from dtcourse.collectives.network import EmulatedNetwork

        options["network"] = EmulatedNetwork(**request["network"])
    return attempt(step, functions, request["world_size"], tuple(request["args"]), options)


def define(pieces: list[Piece], takes: tuple[str, ...]) -> dict[str, Any]:
    """Execute the statements of an answer and return the functions that the exercise takes.

    A statement that needs a later one (cells out of order) is tried again after the others.

    Raises
    ------
    CheckFailed
        If a statement raises, with its cell and line.
    """
    space: dict[str, Any] = {"__name__": "__main__", "__builtins__": __builtins__}
    flags = 0
    if any(piece.code.startswith("from __future__ import annotations") for piece in pieces):
        import __future__

        flags = __future__.annotations.compiler_flag
    left = pieces
    while left:
        again: list[tuple[Piece, BaseException]] = []
        for piece in left:
            try:
                text = "\n" * (piece.line - 1) + piece.code
                code = compile(
                    text, f"cell {piece.cell} of your notebook", "exec", flags, dont_inherit=True
                )
                exec(code, space)  # noqa: S102 - this is the process that exists to do so
            except NameError as error:
                again.append((piece, error))
            except BaseException as error:
                raise _undefined(piece, error) from None
        if len(again) == len(left):
            raise _undefined(*again[0]) from None
        left = [piece for piece, _ in again]
    missing = [name for name in takes if not callable(space.get(name))]
    if missing:
        raise Unfinished(f"`{missing[0]}` is no function in this notebook.")
    return {name: space[name] for name in takes}


def _undefined(piece: Piece, error: BaseException) -> CheckFailed:
    return CheckFailed(
        f"Cell {piece.cell} of the notebook, line {piece.line}: {type(error).__name__}: {error}"
    )
