"""An answer in a process of its own, held to limits, heard as plain data only: the judge's side.

The other side is serving.py. On Linux bubblewrap gives that process a file system, a network and processes of its own;
without it the process is the user's, with all their files (bubblewrap.py). What comes back is read with torch's
weights_only loader, which builds tensors, numbers and text and calls nothing. That process does not execute the answer
either. Its ranks do; it reads what they send as data, and on Linux none of them can look into it (launch/distrust.py),
nor, where there is Landlock, into another rank (launch/apart.py).
Whatever the answer does there (patch the package, print a verdict, leave with exit code 0), the judge compares the
numbers that came back with its own.

What an answer could still do is fake what its own ranks *return* and *measure* (values made of the inputs that a step
has, bytes sent, messages, seconds), since those numbers come from processes that run its code. (What a choice costs is
measured by ranks that never hold it: trials.py.) runs.guarded and taking.take refuse the ways that are known; a
determined author may find another.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import FunctionType
from typing import Any

from dtcourse.course.judging import attempts, bubblewrap, limits
from dtcourse.course.judging import imports as answers
from dtcourse.course.judging.process import MARK, START, AnswerProcess
from dtcourse.course.judging.requirements import KINDS, CheckFailed, Stopped
from dtcourse.course.judging.runs import TIMEOUT, Results, plain
from dtcourse.course.judging.taking import Piece
from dtcourse.course.places import PACKAGE
from dtcourse.launch.each import Each

MOST_NAMED = 10  # attempts of one answer

# What an answer's process imports besides the environment's packages, by its path there.
MODULES = {"dtcourse": PACKAGE}
_PASSED_ON = ("LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "TZ")


class Sandbox:
    """The judge's side of an answer's process. A context manager: leaving it ends every process in it.

    limit:    seconds for all that is asked of it, without the judge's own work, on a machine that does nothing else
    memory:   bytes for all its processes together; None: what `limits.memory` says
    modules:  what it imports the course from (see MODULES)
    confined: in bubblewrap; else as the user, in a folder of its own, without the environment's secrets
    private:  folders that are none of its business, besides the user's home
    imports:  modules that its ranks find loaded (imports.py); None: all that any exercise may use
    """

    def __init__(
        self,
        limit: float = 300.0,
        *,
        memory: int | None = None,
        modules: Mapping[str, Path] | None = None,
        confined: bool = True,
        private: Iterable[Path] = (),
        imports: list[str] | None = None,
    ) -> None:
        # Until when the answer has computed: its time stands still while the judge does.
        self._heard = time.monotonic()
        self.ends = self._heard + limits.patience(limit)
        self.memory = limits.memory() if memory is None else memory
        self.modules = MODULES if modules is None else modules
        self.confined = confined
        self.private = [Path.home().resolve(), *(path.resolve() for path in private)]
        self.imports = answers.everything() if imports is None else imports
        self.folder = Path(tempfile.mkdtemp(prefix="dtcourse-answer-"))
        self.process: AnswerProcess | None = None
        self._pieces: list[Piece] = []
        self._takes: tuple[str, ...] = ()
        self._defined = False
        self._tried: list[str] = []

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def load(self, pieces: list[Piece], takes: tuple[str, ...]) -> None:
        """Give it the code of an answer; it is executed when the first check runs something.

        The process is that of the answer before, which takes seconds to start, unless that one reached outside.

        Raises NoSandbox if the process does not come to life.
        """
        if self.tried():
            self.close()
        self._pieces, self._takes = pieces, takes
        self._defined, self._tried = False, []
        self.begin()
        process, self.process = self.process, None  # closed, where it does not come to life
        assert process is not None, "it has begun"
        process.wait_until_ready()
        self.process = process

    def begin(self) -> None:
        """Start the process, and do not wait: it imports torch, as its judge may have to. Raises NoSandbox."""
        if self.process is None:
            self._start()

    def run(self, step: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> Results:
        """See `framework.Answer.run`. `step` is a module's function, as is one among `args`: sent by its name."""
        network, devices = options.pop("network", None), options.pop("devices", None)
        options["timeout"] = limits.patience(options.get("timeout", TIMEOUT))
        sent = [one.values if isinstance(one, Each) else one for one in args]
        request = {
            "step": [step.__module__, step.__qualname__],
            "world_size": world_size,
            "args": plain(
                [None if isinstance(one, FunctionType) else one for one in sent], to_answer=True
            ),
            "each": [place for place, one in enumerate(args) if isinstance(one, Each)],
            "functions": [
                [place, one.__module__, one.__qualname__]
                for place, one in enumerate(args)
                if isinstance(one, FunctionType)
            ],
            "options": plain(options),
            "network": network and network.as_data(),
            "devices": [asdict(one) for one in devices]
            if isinstance(devices, list)
            else devices and asdict(devices),
        }
        if not self._defined:
            pieces = [[piece.cell, piece.line, piece.code] for piece in self._pieces]
            self._ask({"pieces": pieces, "takes": list(self._takes)}, limits.patience(TIMEOUT))
            self._defined = True
        reply = self._ask(request, options["timeout"] + START)
        return Results(
            values=list(reply["values"]),
            seconds=float(reply["seconds"]),
            traffic_rows=reply["traffic_rows"],
            traffic_calls=reply["traffic_calls"],
            algorithmic=bool(reply["algorithmic"]),
            event_rows=reply["event_rows"],
        )

    def call(
        self, step: Callable[..., Any], *args: Any, timeout: float = TIMEOUT, **options: Any
    ) -> Any:
        """See `framework.Answer.call`."""
        return self.run(step, 1, *args, timeout=timeout, init=False, **options)[0]

    def tried(self) -> list[str]:
        """What the answer reached for outside its folder, or took too much of: "write to /etc/passwd"."""
        told = self.process.overheard() if self.process else []
        tried = attempts.refused(
            list(filter(None, self._tried + told)), list(map(str, self.private))
        )
        first, more = tried[:MOST_NAMED], len(tried) - MOST_NAMED
        return [*first, f"reach for {more} more"] if more > 0 else first

    def close(self) -> None:
        """End the process and whatever it started."""
        if self.process is not None:
            self.process.close()
            self._tried += self.process.told
            self.process = None

    def _start(self) -> None:
        if self.confined:
            course, home = bubblewrap.COURSE, bubblewrap.HOME
            front = bubblewrap.command(self.modules, self.private)
            folder = self.folder
        else:
            front, folder = [], self.folder / "home"
            course, home = str(self.folder / "course"), str(folder)
            if not folder.exists():
                folder.mkdir()
                self._copy_modules()
        shown = [sys.prefix, sys.base_prefix, course]
        policy = {
            "own": [home, "/dev/shm"],
            "private": list(map(str, self.private)),
            "shown": [*shown, *map(os.path.realpath, shown)],
            "seen": bubblewrap.seen(self.modules) if self.confined else [],
        }
        surroundings = environment(home, course)
        self.process = AnswerProcess(front, surroundings, folder, self.memory, policy, self.imports)

    def _copy_modules(self) -> None:
        """For an answer that could change what it imports: a copy that nobody else uses."""
        for name, path in self.modules.items():
            target = self.folder / "course" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                shutil.copytree(path, target)
            else:
                shutil.copy2(path, target)

    def _ask(self, request: dict[str, Any], patience: float) -> dict[str, Any]:
        now = time.monotonic()
        self.ends += now - self._heard
        until = min(now + patience, self.ends)
        if self.process is None:
            raise Stopped("The answer's process was stopped, so there is nothing more to check.")
        reply: dict[str, Any] = {}
        try:
            self.process.send(request, until)
            reply = self.process.receive(until)
            if "failed" in reply:
                raise self._failure(reply)
        except CheckFailed as error:
            # A time limit, ours or that of the launch within, may come before the watch's next look.
            looks = not reply or isinstance(error, Stopped)
            too_much = self.process.too_much() if looks else None
            if too_much or not reply:
                self.close()
            raise too_much or error from None
        finally:
            self._heard = time.monotonic()
        return reply

    def _failure(self, reply: dict[str, Any]) -> CheckFailed:
        sentence = str(reply.get("sentence", ""))[:4000]
        self._tried.append(limits.met(sentence, self.memory))
        return KINDS.get(str(reply["failed"]), CheckFailed)(sentence)


def environment(home: str, course: str) -> dict[str, str]:
    """The environment of an answer's process: no tokens, no keys, a home of its own."""
    kept = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    packages = bubblewrap.packages(os.environ.get("PYTHONPATH", "").split(os.pathsep))
    folders = [os.path.dirname(sys.executable), "/usr/local/bin", "/usr/bin", "/bin"]
    return {
        **kept,
        "PATH": os.pathsep.join(folders),
        "HOME": home,
        "TMPDIR": home,
        "MPLCONFIGDIR": home,
        "USER": "answer",
        "PYTHONPATH": os.pathsep.join([course, *packages]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        MARK: secrets.token_hex(16),
    }
