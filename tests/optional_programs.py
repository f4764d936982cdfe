"""What a machine may lack: for each thing one probe, and one reason that all tests give which its absence skips.

    @pytest.mark.needs("bubblewrap")                 a test, or as `pytestmark` a file of tests
    optional_programs.require("bubblewrap")          within a test, where only one of its parameters needs it
    @pytest.mark.gpu, browser, slurm                 need what has their name

The summary of `make test` names each reason and the files whose tests it skipped. tools/bare_machine.py runs tests
where none of the programs is to be found, and fails on a skip for any other reason than these.
"""

from __future__ import annotations

import fnmatch
import importlib.util
import shutil
import subprocess
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MARKERS = ("gpu", "browser", "slurm")  # that need what has their name


@dataclass(frozen=True)
class Need:
    """Something that tests need and a machine may lack.

    name:    what `needs` calls it
    words:   what it is and how to come by it
    is_here: looks for it
    brings:  its commands, as the shell's patterns: what a machine without it lacks; empty where it is no program
    """

    name: str
    words: str
    is_here: Callable[[], bool]
    brings: str = ""

    @property
    def reason(self) -> str:
        """Why a test is skipped."""
        return f"needs {self.words}"


def _slurm() -> bool:
    from dtcourse.launch.cluster import throwaway

    return not throwaway.missing()


def _bubblewrap() -> bool:
    from dtcourse.course.judging import bubblewrap

    return not bubblewrap.why_not()


def _landlock() -> bool:
    from dtcourse.launch import apart

    return apart.possible()


def find_chromium() -> str | None:
    """The browser's path: the first of its usual names on PATH."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next(filter(None, map(shutil.which, names)), None)


def _browser() -> bool:
    return find_chromium() is not None and importlib.util.find_spec("playwright") is not None


def _mpirun() -> bool:
    if shutil.which("mpirun") is None:
        return False
    done = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in done.stdout


def _git() -> bool:
    return shutil.which("git") is not None


def _nvidia_smi() -> bool:
    return shutil.which("nvidia-smi") is not None


def _gpu() -> bool:
    from dtcourse import device

    return device.count() > 0


def _triton() -> bool:
    """In the environment, or where `make triton` puts it."""
    return importlib.util.find_spec("triton") is not None or (ROOT / "build/triton/triton").is_dir()


def _mlflow() -> bool:
    return importlib.util.find_spec("mlflow") is not None


def _ray() -> bool:
    return importlib.util.find_spec("ray") is not None


def _users() -> bool:
    from tests.launch.cluster import users

    return users.can_be_had()


def _namespaces() -> bool:
    from tests.launch.cluster import networks

    return networks.can_be_had()


def _python_3_11() -> bool:
    from dtcourse.course.frameworks import environment

    try:
        return bool(environment.find_python())
    except ValueError:
        return False


def _shared() -> bool:
    return all((ROOT.parent / "shared" / name).exists() for name in ("published", "syllabus.yml"))


NEEDS = {
    need.name: need
    for need in (
        Need(
            "slurm",
            "Slurm's programs (apt-get install --no-install-recommends slurm-wlm munge)",
            _slurm,
            "sacct* salloc sattach sbatch sbcast scancel scontrol scrontab sdiag sinfo sprio squeue sreport srun "
            "sshare sstat strigger slurm* munge* remunge unmunge",
        ),
        Need(
            "bubblewrap",
            "a bubblewrap that works (apt-get install bubblewrap)",
            _bubblewrap,
            "bwrap",
        ),
        Need(
            "landlock", "Landlock, version 2 or later (Linux 5.19, and turned on there)", _landlock
        ),
        Need(
            "browser",
            "playwright and Chromium (apt-get install chromium)",
            _browser,
            "chromium* google-chrome*",
        ),
        Need(
            "mpirun",
            "Open MPI's mpirun (apt-get install openmpi-bin)",
            _mpirun,
            "mpi* orte* ompi* prte* prun",
        ),
        Need("nvidia-smi", "nvidia-smi, which comes with NVIDIA's driver", _nvidia_smi, "nvidia-*"),
        Need("git", "git (apt-get install git)", _git, "git git-* scalar"),
        Need("clone", "a clone: this is no checkout of git's", (ROOT / ".git").exists),
        Need("gpu", "a GPU that torch can use", _gpu),
        Need("python3.11", "Python 3.11, which the frameworks' versions are for", _python_3_11),
        Need("mlflow", "mlflow (pip install --group tracking)", _mlflow),
        Need("ray", 'Ray (pip install "ray==2.60.0")', _ray),
        Need("triton", "Triton (Linux: `make triton`)", _triton),
        Need(
            "users", "root, who may become other users and mount (a container may deny it)", _users
        ),
        Need(
            "namespaces",
            "root, who may make network namespaces, and ip (apt-get install iproute2; a container may deny it)",
            _namespaces,
            "ip",
        ),
        Need("shared", "the project's own sources, shared/, beside this checkout", _shared),
    )
}


@cache
def missing(name: str) -> str:
    """Why a test that needs this is skipped; empty where it is here."""
    need = NEEDS[name]
    return "" if need.is_here() else need.reason


def missing_for(item: pytest.Item) -> str:
    """Why a marked test is skipped on this machine; empty where it is not."""
    names = [name for name in MARKERS if item.get_closest_marker(name)]
    names += [name for marker in item.iter_markers("needs") for name in marker.args]
    return next(filter(None, map(missing, names)), "")


def require(name: str) -> None:
    """Skip the test that calls this where it cannot have what it needs."""
    if reason := missing(name):
        pytest.skip(reason)


def hidden(command: str) -> bool:
    """Whether a command is one that comes with an optional program."""
    patterns = (pattern for need in NEEDS.values() for pattern in need.brings.split())
    return any(fnmatch.fnmatchcase(command, pattern) for pattern in patterns)


def unknown(reasons: Iterable[str]) -> list[str]:
    """Those among reasons for skipping that are on no list."""
    known = {need.reason for need in NEEDS.values()}
    return [reason for reason in reasons if reason not in known]
