"""An environment of its own for each set of pins, outside the course's: made on demand and used again.

Three steps: torch first where the pins have it (with what `make env` was given for it, so that pip takes the one for
this machine's GPU or CPU), then all other pins, then what has to be built. Each pin is exact and nothing else is
installed, so pip never replaces that torch. The folder has `dtcourse-installing` while it is being made, and
`dtcourse-ready` with the pins' hash afterwards; one that was interrupted is removed and made again.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dtcourse.course import places
from dtcourse.course.frameworks import catalogue as frameworks
from dtcourse.course.frameworks.catalogue import Framework

PYTHON = "3.11"  # the pins hold for it
VARIABLE = "DTCOURSE_FRAMEWORKS"
Progress = Callable[[str, float], None]  # the step in words, megabytes so far


class NotInstalled(Exception):
    """A framework's environment could not be made: the step, and the last lines of what the tool said."""

    def __init__(self, step: str, said: str) -> None:
        super().__init__(f"{step} failed")
        self.step, self.said = step, said


def place(framework: Framework) -> Path:
    """The folder of its environment: in what DTCOURSE_FRAMEWORKS names, else in the user's cache."""
    if given := os.environ.get(VARIABLE):
        return Path(given).expanduser().resolve() / framework.pins
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "dtcourse" / "frameworks" / framework.pins


def python_of(framework: Framework) -> Path:
    """The Python that runs it: this one, or its environment's."""
    return place(framework) / "bin" / "python" if framework.pins else Path(sys.executable)


def is_ready(framework: Framework) -> bool:
    """Whether its environment is complete, and of these pins."""
    if not framework.pins:
        return True
    folder = place(framework)
    if (folder / "dtcourse-installing").exists():
        return False
    with suppress(OSError, ValueError):
        ready = json.loads((folder / "dtcourse-ready").read_text(encoding="utf-8"))
        return python_of(framework).exists() and ready == _marks(framework)
    return False


def find_python() -> str:
    """A Python of the pins' version: this one, or python3.11 on PATH.

    Raises ValueError where there is none.
    """
    base = getattr(sys, "_base_executable", None) or sys.executable
    for candidate in (base, shutil.which(f"python{PYTHON}")):
        if candidate and _version(candidate) == PYTHON:
            return str(candidate)
    raise ValueError(
        f"the frameworks' versions hold for Python {PYTHON}, which is not on PATH (python{PYTHON}): this one is "
        f"{sys.version_info.major}.{sys.version_info.minor}. Install it beside this one; "
        "`dtcourse framework compare` shows what was recorded"
    )


def make(framework: Framework, progress: Progress = lambda step, megabytes: None) -> None:
    """Make its environment, unless it is ready.

    progress: is called about once a second

    Raises NotInstalled where a step fails, ValueError where there is no Python for it.
    """
    python = find_python()
    folder = place(framework)
    with _only_one(folder):
        if is_ready(framework):  # another call has made it while this one waited
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        mark = folder / "dtcourse-installing"
        mark.touch()
        for step, command in steps(framework, python):
            _do(step, command, folder, framework, progress)
        marks = json.dumps(_marks(framework), indent=1) + "\n"
        (folder / "dtcourse-ready").write_text(marks, encoding="utf-8")
        mark.unlink()
        shutil.rmtree(folder / "tmp", ignore_errors=True)


def steps(framework: Framework, python: str) -> Iterator[tuple[str, list[str]]]:
    """What makes the environment: each step in words, and its command."""
    folder, pins = place(framework), framework.pins_file
    assert pins is not None, "a framework without pins needs no environment"
    inside = str(folder / "bin" / "python")
    pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    yield "an empty environment", [python, "-m", "venv", str(folder)]
    lines = pins.read_text(encoding="utf-8").splitlines()
    for line in lines:
        if line.startswith("torch=="):
            yield "PyTorch", [*pip, line, *shlex.split(_pip_args())]
    yield f"the packages of {pins.name}", [*pip, "--no-deps", "-r", str(pins)]
    if framework.prepare:
        yield framework.prepare, [inside, *shlex.split(framework.prepare)]


def megabytes(folder: Path) -> float:
    """What the files under a folder hold now; one that goes meanwhile is not counted."""
    total, folders = 0, [str(folder)]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total / 1e6


def takes(framework: Framework) -> float:
    """Megabytes that its environment will have: the catalogue's, which are with PyTorch for CPUs, and CUDA's libraries
    where the course's own torch has brought them, as the same torch does there.
    """
    cuda = 0.0
    if "torch" in framework.packages:
        cuda = megabytes(Path(sysconfig.get_paths()["purelib"]) / "nvidia")
    return framework.megabytes + cuda


def variables(framework: Framework, folder: Path) -> dict[str, str]:
    """The environment variables for its programs: its Python first on PATH, and no other Python's packages."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    own = {k: v.replace("{environment}", str(folder)) for k, v in framework.environment.items()}
    path = f"{python_of(framework).parent}{os.pathsep}{kept.get('PATH', '')}"
    return {**kept, "PYTHONNOUSERSITE": "1", **own, "PATH": path}


def _do(
    step: str, command: list[str], folder: Path, framework: Framework, progress: Progress
) -> None:
    downloads = folder / "tmp"
    downloads.mkdir(exist_ok=True)
    environment = {**variables(framework, folder), "TMPDIR": str(downloads)}
    log = folder / "dtcourse-log.txt"
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, cwd=frameworks.folder(),
            env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            while child.poll() is None:
                progress(step, megabytes(folder))
                with suppress(subprocess.TimeoutExpired):
                    child.wait(timeout=1)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, 9)
            child.wait()
            raise
    if child.returncode:
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-12:]
        raise NotInstalled(step, "\n".join(said))


def _marks(framework: Framework) -> dict[str, str]:
    pins = framework.pins_file
    assert pins is not None, "a framework without pins needs no environment"
    digest = hashlib.sha256(pins.read_bytes())
    if framework.prepare:
        script = frameworks.folder() / shlex.split(framework.prepare)[0]
        digest.update(framework.prepare.encode() + script.read_bytes())
    return {"pins": digest.hexdigest(), "place": str(place(framework))}


def _pip_args() -> str:
    """What `make env` was given for torch, such as an index for the user's GPU."""
    with suppress(OSError, ValueError):
        ready = json.loads((places.home() / ".venv" / "dtcourse-ready").read_text(encoding="utf-8"))
        return str(ready.get("pip_args", ""))
    return ""


def _version(python: str) -> str:
    code = 'import sys; print("%d.%d" % sys.version_info[:2])'
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(
            [python, "-c", code], capture_output=True, text=True, timeout=30, check=False
        )
        return done.stdout.strip()
    return ""


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    """Two calls at once: the second waits, and finds it made."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
