"""One run of a framework's script: alone, on a network of its own where the system allows that, and what it found.

On Linux, `unshare` gives the run a loopback device and process numbers of its own. Every byte that passes it is
the run's, which is how bytes are counted for any framework; and whatever it has started is gone when it ends.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from dtcourse.course.frameworks import catalogue as frameworks
from dtcourse.course.frameworks import environment, records
from dtcourse.course.frameworks.catalogue import Framework
from dtcourse.course.frameworks.records import Record
from dtcourse.plural import plural

ALONE = ("unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
UP = 'ip link set lo up && exec "$@"'
# PyTorch's words when a thread of its own asks for the interpreter's lock while Python shuts down: the process aborts
# after its work is done. Seen in 2 of 24 runs of the plain DDP script on a busy machine (torch 2.13). It is run again.
TORN, TRIES = "terminate called without an active exception", 3
# The end of a traceback, as Python shows it, or a rank under torchrun.
ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]+(Error|Exception): ")


class NotEqual(Exception):
    """The script ended without a result: its exit code, and the last lines of what it said."""

    def __init__(self, code: int, said: str) -> None:
        super().__init__(f"exit code {code}")
        self.code, self.said = code, said


def require(framework: Framework) -> None:
    """ValueError where a program of the system that it needs is missing: before anything is made for it."""
    if framework.needs and shutil.which(framework.needs) is None:
        raise ValueError(
            f"{framework.title} needs the program {framework.needs}, which is not on PATH here; "
            f"`dtcourse framework compare {framework.name}` shows its record, if there is one"
        )


def run(framework: Framework, timeout: float) -> Record:
    """Run it in its environment, which is ready, and return its record.

    timeout: seconds

    Raises ValueError where a program of the system is missing, NotEqual where the script fails or takes longer.
    """
    require(framework)
    hashes = records.hashes(framework)  # of what is run, whatever changes meanwhile
    for tries_left in reversed(range(TRIES)):
        began = time.monotonic()
        try:
            with tempfile.TemporaryDirectory() as folder:
                found = _run(framework, timeout, Path(folder))
            break
        except NotEqual as error:
            if TORN not in error.said or not tries_left:
                raise
    seconds = time.monotonic() - began
    if framework.wire:
        found["step_bytes"] = None
    return {
        "framework": framework.name,
        **found,
        "lines": records.lines_of_code(framework.script_file.read_text(encoding="utf-8")),
        "seconds": round(seconds, 1),
        "versions": versions(framework),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "date": datetime.date.today().isoformat(),
        "hashes": hashes,
    }


def _run(framework: Framework, timeout: float, folder: Path) -> Record:
    result, log = folder / "result.json", folder / "log.txt"
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    variables = {
        "GLOO_SOCKET_IFNAME": loopback,
        "TP_SOCKET_IFNAME": loopback,
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
        "RAY_TMPDIR": str(folder),
        "RAY_ADDRESS": "local",  # and not a Ray that somebody has running here
        **environment.variables(framework, environment.place(framework)),
        "DTCOURSE_FRAMEWORK_RESULT": str(result),
    }
    command = shlex.split(framework.command)
    variables.pop("DTCOURSE_FRAMEWORK_ALONE", None)
    if can_be_alone():
        variables["DTCOURSE_FRAMEWORK_ALONE"] = "1"
        command = [*ALONE, "sh", "-c", UP, "sh", *command]
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            cwd=frameworks.folder(), env=variables, start_new_session=True,
        )  # fmt: skip
        try:
            code = child.wait(timeout)
        except subprocess.TimeoutExpired:
            code = 124
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    said = log.read_text(encoding="utf-8", errors="replace")
    if code == 0 and result.exists():
        found: Record = json.loads(result.read_text(encoding="utf-8"))
        return found
    if code == 124:
        said += f"\nnot done after {plural(round(timeout), 'second')}"
    if code == 0:
        said += "\nthe script ended well and wrote no result: it never called job.Log.report"
    raise NotEqual(code, _shortened(said))


def _shortened(said: str) -> str:
    """The first lines, where the cause often is, the last ones, where a launcher sums up, and errors between them."""
    lines = said.strip().splitlines()
    if len(lines) <= 60:
        return "\n".join(lines)
    middle = lines[25:-25]
    errors = [line for line in middle if ERROR.match(line)][-5:]
    left_out = f"... ({plural(len(middle) - len(errors), 'line')} left out)"
    return "\n".join([*lines[:25], left_out, *errors, *lines[-25:]])


@cache
def can_be_alone() -> bool:
    """Whether this system gives a run a network and process numbers of its own."""
    if sys.platform != "linux" or shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    probe = [*ALONE, "sh", "-c", UP, "sh", "true"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def versions(framework: Framework) -> dict[str, str]:
    """Of Python and of the framework's packages, as its environment has them."""
    code = (
        "import json, platform, sys; from importlib.metadata import version; "
        "print(json.dumps({'python': platform.python_version()} | {n: version(n) for n in sys.argv[1:]}))"
    )
    done = subprocess.run(
        [str(environment.python_of(framework)), "-c", code, *framework.packages],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, str] = json.loads(done.stdout)
    return found
