"""Make or refresh the environment that `make lab` and `make test` use: a venv with the lock's versions.

Called by tools/setup with any supported Python and nothing installed, so only the standard library
is used here. Three steps: torch first (with the user's own PIP_ARGS, since which torch fits depends
on the GPU), then the rest of requirements.lock, then dtcourse itself as an editable install.

Two files in the environment say how far it got:

- `dtcourse-installing` exists from before the first step until after the last. An environment that
  has it was interrupted; it is made anew, since pip cannot be trusted to notice a half-copied package.
- `dtcourse-ready` holds the fingerprint of what was installed. While it matches, there is nothing to
  do, and this script ends in a tenth of a second.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / (os.environ.get("VENV") or ".venv")
READY = VENV / "dtcourse-ready"
INSTALLING = VENV / "dtcourse-installing"
DOWNLOADS = VENV / "dtcourse-downloads"
LOCK = ROOT / "requirements.lock"

# What a first use took on two cores, with PyTorch for the CPU: README has the same figures.
MEGABYTES, MINUTES = 2_100, 5
WIDTH = 30  # characters of the bar


def main() -> None:
    """Bring the environment up to date, or end at once where it is."""
    pip_args = os.environ.get("PIP_ARGS", "").strip()
    if VENV.is_symlink():
        use_as_it_is()
        return
    with only_one():
        reason = out_of_date(pip_args)
        if not reason:
            return
        say(f"Setting up {VENV.name} ({reason}).")
        say(
            f"This takes about {MEGABYTES:,} MB of disk and {MINUTES} minutes, once; more where pip takes PyTorch "
            "for a GPU or the network is slow. Ctrl-C is safe: the next call starts over."
        )
        install(pip_args or remembered_pip_args())
        say(f"{VENV.name} is ready.")


def use_as_it_is() -> None:
    """An environment that .venv only links to belongs to another folder: to clear it would break that one."""
    if not (VENV / "bin" / "python").exists():
        stop(f"{VENV.name} is a link, and where it leads is no environment. Remove it: rm {VENV}")
    if read_ready().get("fingerprint") != fingerprint():
        say(f"{VENV.name} is a link to an environment with other versions; it is used as it is.")


def out_of_date(pip_args: str) -> str:
    """Why the environment has to be installed, in a few words; empty where it does not."""
    if not (VENV / "bin" / "python").exists():  # also where it is a link to a Python that is gone
        return "first use" if not VENV.exists() else "its Python is gone"
    if INSTALLING.exists():
        return "the last installation was interrupted"
    if not READY.exists():
        return "nothing says that it is complete"
    ready = read_ready()
    if ready.get("place") != str(VENV):
        return "the folder has moved"
    if ready.get("fingerprint") != fingerprint():
        return "the versions have changed"
    if pip_args and pip_args != ready.get("pip_args"):
        return "PIP_ARGS has changed"
    if os.environ.get("PYTHON") and ready.get("python") != python_version():
        return f"another Python, {python_version()}"
    return ""


def fingerprint() -> str:
    """Of the files that decide what is installed."""
    digest = hashlib.sha256()
    for path in (LOCK, ROOT / "pyproject.toml"):
        digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def install(pip_args: str) -> None:
    """Make the environment and fill it; `READY` is written only when all of it went well."""
    if may_update_in_place(pip_args):
        READY.unlink(missing_ok=True)
        INSTALLING.touch()
    else:
        VENV.mkdir(parents=True, exist_ok=True)
        INSTALLING.touch()
        make_venv()
        INSTALLING.touch()  # --clear took the first one away

    # Errors only: what is going on, the bar says, or a line for each step.
    pip_install = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--quiet", "--quiet"]
    pip_install += ["--disable-pip-version-check"]
    number = sum("==" in line for line in LOCK.read_text().splitlines())
    run(
        "1 of 3: PyTorch",
        [*pip_install, torch_pin(), *shlex.split(pip_args)],
        "torch could not be installed",
    )
    run(
        f"2 of 3: the {number} packages of requirements.lock",
        [*pip_install, "-r", str(LOCK)],
        "the versions of requirements.lock could not be installed",
    )
    run(
        "3 of 3: dtcourse itself",
        [*pip_install, "--no-deps", "--no-build-isolation", "-e", str(ROOT)],
        "dtcourse itself could not be installed",
    )
    shutil.rmtree(DOWNLOADS, ignore_errors=True)

    ready = {
        "fingerprint": fingerprint(),
        "pip_args": pip_args,
        "place": str(VENV),
        "python": python_version(),
    }
    READY.write_text(json.dumps(ready, indent=1) + "\n")
    INSTALLING.unlink()


def may_update_in_place(pip_args: str) -> bool:
    """Whether pip can work on what is there; otherwise the environment is made anew."""
    if INSTALLING.exists() or not (VENV / "bin" / "python").exists():
        return False
    if not READY.exists():
        return True  # somebody's own .venv: add to it, do not throw it away
    ready = read_ready()
    same_python = not os.environ.get("PYTHON") or ready.get("python") == python_version()
    return ready.get("place") == str(VENV) and ready.get("pip_args") == pip_args and same_python


def make_venv() -> None:
    """A fresh venv. The Python may be the one inside the venv: its base is what counts."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    done = subprocess.run(
        [base, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = (done.stderr + done.stdout).strip()
        stop(
            f"{base} cannot make a virtual environment. On Debian and Ubuntu its other half is the "
            f"package python3-venv; or name another Python: make lab PYTHON=...\n{said}"
        )


def torch_pin() -> str:
    """The lock's line for torch: it is the first, so that PIP_ARGS concerns torch alone."""
    for line in LOCK.read_text().splitlines():
        if line.startswith("torch=="):
            return line
    return stop("requirements.lock has no line torch==...; make it anew with `make lock`")


def run(step: str, command: list[str], failure: str) -> None:
    """Run one step; a step that fails ends everything, and the next call starts over."""
    say(step)
    DOWNLOADS.mkdir(exist_ok=True)
    # pip unpacks here what it downloads: counted by the bar, and not in a /tmp that may be small.
    environment = {**os.environ, "TMPDIR": str(DOWNLOADS)}
    try:
        with subprocess.Popen(command, cwd=ROOT, env=environment) as pip:
            code = wait_for(pip)
    except KeyboardInterrupt:
        stop("interrupted; the next call starts over")
    if code:
        stop(f"{failure} (pip's own words are above); the next call starts over")


def wait_for(pip: subprocess.Popen[bytes]) -> int:
    """Wait until pip has ended, on a terminal with a bar that moves; its exit code."""
    if not sys.stdout.isatty():
        return pip.wait()
    begun = time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            pip.wait(timeout=1)
        print(f"\r{bar(megabytes(VENV), time.monotonic() - begun)}", end="", flush=True)
        if pip.returncode is not None:
            print(flush=True)
            return pip.returncode


def bar(done: float, seconds: float) -> str:
    """A line such as "[######......] 1,050 of about 2,100 MB, 2:31"."""
    full = min(WIDTH, int(WIDTH * done / MEGABYTES))
    minutes, rest = divmod(int(seconds), 60)
    return f"  [{'#' * full}{'.' * (WIDTH - full)}] {done:,.0f} of about {MEGABYTES:,} MB, {minutes}:{rest:02}  "


def megabytes(folder: Path) -> float:
    """What the files under a folder hold now; one that goes meanwhile is not counted."""
    total, folders = 0, [str(folder)]
    while folders:
        with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
    return total / 1e6


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    """Let `make lab` and `make test` in two terminals install one after the other, where it is one environment."""
    folder = ROOT / ".cache"
    folder.mkdir(exist_ok=True)
    with (folder / f"{VENV.name}.lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another make is installing; waiting for it.")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def read_ready() -> dict[str, str]:
    try:
        return json.loads(READY.read_text())
    except (OSError, ValueError):
        return {}


def remembered_pip_args() -> str:
    return read_ready().get("pip_args", "")


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def say(text: str) -> None:
    print(f"dtcourse: {text}", flush=True)


def stop(text: str) -> NoReturn:
    sys.exit(f"dtcourse: {text}")


if __name__ == "__main__":
    main()
