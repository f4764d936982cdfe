"""Python and what is installed in it, without PyTorch."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
from collections.abc import Iterator

from dtcourse.course.doctor.findings import Finding


def python() -> Iterator[Finding]:
    """Its version, and the system."""
    version = platform.python_version()
    supported = tuple(map(int, platform.python_version_tuple()[:2])) >= (3, 11)
    if supported:
        yield Finding("Python", "ok", f"{version} on {platform.system()} {platform.machine()}")
    else:
        yield Finding(
            "Python", "problem", version, "3.11 or newer is needed: make PYTHON=python3.12 env"
        )
    if sys.platform == "win32":
        yield Finding(
            "system",
            "problem",
            "Windows",
            "torch.distributed and launch need Linux or macOS: use WSL2 (wsl --install)",
        )


def packages() -> Iterator[Finding]:
    """What the lessons import."""
    wanted = (
        "jupyterlab",
        "ipykernel",
        "ipywidgets",
        "matplotlib",
        "seaborn",
        "sklearn",
        "papermill",
    )
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        yield Finding("packages", "problem", f"missing: {', '.join(missing)}", "make env")
    else:
        yield Finding("packages", "ok", "JupyterLab and what the lessons import")


def grading() -> Iterator[Finding]:
    """bubblewrap."""
    from dtcourse.course.judging.bubblewrap import why_not

    if not (reason := why_not()):
        yield Finding("grading", "ok", "bubblewrap keeps what is graded from your files")
        return
    advice = "only `dtcourse grade` wants it"
    if "does not work" in reason:
        advice += (
            "; on Ubuntu: sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0; "
            "most containers allow nobody to do that: grade outside"
        )
    yield Finding("grading", "ok" if sys.platform != "linux" else "note", reason, advice)


def kernel() -> Iterator[Finding]:
    """Which Python Jupyter's kernel is."""
    if importlib.util.find_spec("jupyter_client") is None:
        return
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        command = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        yield Finding("Jupyter kernel", "problem", "no kernel python3", "make env")
        return
    # A bare "python" is replaced by the Python that JupyterLab runs on.
    same = not os.path.isabs(command) or os.path.realpath(command) == os.path.realpath(
        sys.executable
    )
    if same or os.path.dirname(command) == os.path.dirname(sys.executable):
        yield Finding("Jupyter kernel", "ok", "python3 is this Python")
    else:
        yield Finding(
            "Jupyter kernel",
            "problem",
            f"python3 starts {command}, not {sys.executable}",
            "a kernel of another environment has the name: jupyter kernelspec list, then remove it",
        )
