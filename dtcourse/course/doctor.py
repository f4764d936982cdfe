"""What this machine can run and what not, and what to do about it. Each finding is looked for, not assumed."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dtcourse.launch import server, waiting

GB = 2**30


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. state: "ok", "note" (some lessons will miss it) or "problem" (all will)."""

    name: str
    state: str
    found: str
    advice: str = ""


def examine(launch_ranks: bool = True) -> Iterator[Finding]:
    """Look at everything and give each finding as it is found; a part that fails to look says so and stops no other."""
    parts: list[tuple[Callable[[], Iterator[Finding]], str]] = [
        (_python, "asking this Python"),
        (_packages, "looking for packages"),
        (_processors, "counting cores"),
        (_shared_memory, "measuring shared memory"),
        (_limits, "reading limits"),
        (_grading, "starting bubblewrap"),
        (_network, "connecting to this machine"),
        (_kernel, "asking Jupyter for its kernel"),
        (_torch, "importing PyTorch"),
        (_gpus, "looking for GPUs"),
        (_backends, "asking for backends"),
    ]
    if launch_ranks:
        parts.append((_launch, "launching two ranks"))
        _start_server()
    for part, doing in parts:
        try:
            with waiting.saying(doing):
                findings = list(part())
        except Exception as error:  # whatever a strange machine does, the others are still wanted
            name = part.__name__.strip("_").replace("_", " ")
            said = f"could not be looked at: {type(error).__name__}: {error}"
            findings = [Finding(name, "note", said)]
        yield from findings


def _start_server() -> None:
    """The ranks' server imports PyTorch while we do."""
    if sys.platform != "win32" and importlib.util.find_spec("torch") is not None:
        server.start_early()


def _python() -> Iterator[Finding]:
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


def _torch() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield Finding("torch", "problem", "not installed", "make env")
        return
    import torch

    version = tuple(int(number) for number in re.findall(r"\d+", torch.__version__)[:2])
    if version < (2, 11):
        yield Finding("torch", "problem", torch.__version__, "2.11 or newer is needed: make env")
    elif not torch.distributed.is_available():
        yield Finding(
            "torch",
            "problem",
            f"{torch.__version__} without torch.distributed",
            "install a build with it",
        )
    else:
        yield Finding("torch", "ok", torch.__version__)


def _packages() -> Iterator[Finding]:
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


def _processors() -> Iterator[Finding]:
    import psutil

    usable = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    memory = psutil.virtual_memory()
    found = f"{usable} usable of {os.cpu_count()}"
    if usable < 2:
        yield Finding(
            "CPU cores",
            "note",
            found,
            "ranks will take turns: times and overlap show less than on two cores",
        )
    else:
        yield Finding("CPU cores", "ok", found)
    free = f"{memory.available / GB:.1f} of {memory.total / GB:.1f} GB free"
    if memory.available < 3 * GB:
        yield Finding(
            "memory",
            "note",
            free,
            "four ranks take about 1.5 GB with torch: close something, or -p WORLD_SIZE 2",
        )
    else:
        yield Finding("memory", "ok", free)


def _gpus() -> Iterator[Finding]:
    from dtcourse import device

    count = device.count()
    if not count:
        if shutil.which("nvidia-smi"):
            listed = _said(["nvidia-smi", "-L"])
            if "GPU" in listed:
                yield Finding(
                    "GPUs",
                    "note",
                    "there are some, and this torch cannot use them",
                    "make lab PIP_ARGS=... (README: your own torch)",
                )
                return
        yield Finding(
            "GPUs", "ok", "none: ranks run on the CPU with gloo, which every lesson can do"
        )
        return
    yield Finding("GPUs", "ok", f"{count}: {', '.join(device.names())}")
    if count == 1:
        yield Finding(
            "GPU ranks",
            "note",
            "one GPU",
            "ranks share it and talk through gloo; NCCL wants a GPU for each rank",
        )
        return
    links = _links(_said(["nvidia-smi", "topo", "-m"]))
    yield Finding(
        "GPU links",
        "ok" if links else "note",
        links or "nvidia-smi does not say how they are linked",
    )


def _links(table: str) -> str:
    """A sentence from `nvidia-smi topo -m`: which kinds of link there are between pairs of GPUs."""
    meanings = {
        "NV": "by NVLink",
        "PIX": "by one PCIe switch",
        "PXB": "by several PCIe switches",
        "PHB": "by the PCIe host bridge",
        "NODE": "by PCIe in one NUMA node",
        "SYS": "across CPU sockets",
    }
    found: dict[str, int] = {}
    plain = re.sub(r"\x1b\[[0-9;]*m", "", table)
    rows = [
        line.split()
        for line in plain.splitlines()
        if re.match(r"\s*GPU\d+\s+(X|NV|PIX|PXB|PHB|NODE|SYS)", line)
    ]
    for index, row in enumerate(rows):
        for word in row[index + 2 : len(rows) + 1]:
            kind = "NV" if word.startswith("NV") else word
            if kind in meanings:
                found[meanings[kind]] = found.get(meanings[kind], 0) + 1
    return ", ".join(f"{count} pair{'s' * (count > 1)} {name}" for name, count in found.items())


def _backends() -> Iterator[Finding]:
    import torch.distributed as dist

    have = [
        name
        for name, there in (("gloo", dist.is_gloo_available()), ("nccl", dist.is_nccl_available()))
        if there
    ]
    have += ["mpi"] if dist.is_mpi_available() else []
    if "gloo" not in have:
        yield Finding(
            "backends",
            "problem",
            ", ".join(have) or "none",
            "CPU ranks need gloo: install a torch that has it",
        )
    else:
        yield Finding("backends", "ok", ", ".join(have))
    if mpirun := shutil.which("mpirun"):
        version = (_said([mpirun, "--version"]).splitlines() or ["found"])[0]
        yield Finding("mpirun", "ok", version)
    else:
        yield Finding(
            "mpirun",
            "note",
            "not found",
            "only lesson 05's section on MPI wants it (apt install openmpi-bin)",
        )


def _shared_memory() -> Iterator[Finding]:
    folder = Path("/dev/shm")
    if not folder.is_dir():
        yield Finding(
            "shared memory", "ok", "no /dev/shm on this system: results travel through a file"
        )
        return
    size = shutil.disk_usage(folder)
    found = f"{size.free / GB:.2f} of {size.total / GB:.2f} GB free in /dev/shm"
    if size.free < GB:
        advice = "large results travel through a file, which is slower; in a container: docker run --shm-size 2g"
        yield Finding("shared memory", "note", found, advice)
    else:
        yield Finding("shared memory", "ok", found)


def _limits() -> Iterator[Finding]:
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < 1024:
        yield Finding(
            "open files",
            "note",
            f"{soft} (at most {hard})",
            "ulimit -n 4096 before jupyter, for more than 8 ranks",
        )
    else:
        yield Finding(
            "open files", "ok", "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
        )
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and soft < 512:
        yield Finding(
            "processes", "note", str(soft), "ulimit -u 4096: a rank takes several threads"
        )
    group = Path("/sys/fs/cgroup/pids.max")
    if group.is_file() and (text := group.read_text().strip()).isdigit() and int(text) < 512:
        yield Finding(
            "processes",
            "note",
            f"{text} in this container",
            "docker run --pids-limit -1: a rank takes several threads",
        )


def _grading() -> Iterator[Finding]:
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


def _network() -> Iterator[Finding]:
    try:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            server.listen(1)
            with socket.create_connection(server.getsockname(), timeout=5):
                pass
    except OSError as error:
        yield Finding(
            "loopback",
            "problem",
            f"127.0.0.1 cannot be reached: {error}",
            "ranks meet there: ask who set up this machine",
        )
    else:
        yield Finding("loopback", "ok", "ranks on this machine can meet at 127.0.0.1")
    import psutil

    up = [name for name, stats in psutil.net_if_stats().items() if stats.isup]
    others = [name for name in up if not name.startswith(("lo", "docker", "veth", "br-"))]
    if others:
        yield Finding("interfaces", "ok", ", ".join(others))
    else:
        yield Finding(
            "interfaces",
            "note",
            "only loopback",
            "enough for one machine; several nodes need a network between them",
        )
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        wanted = os.environ.get(variable)
        if (
            wanted
            and not wanted.startswith("^")
            and not any(name.startswith(wanted.lstrip("=")) for name in up)
        ):
            yield Finding(
                variable,
                "problem",
                f"{wanted!r} is no interface here ({', '.join(up)})",
                f"unset {variable}",
            )


def _kernel() -> Iterator[Finding]:
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


def _rank_says() -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return float(tensor[0])


def _launch() -> Iterator[Finding]:
    from dtcourse.launch import launch

    try:
        run = launch(_rank_says, 2, timeout=90)
    except Exception as error:  # the message of a failed launch is the finding
        yield Finding(
            "two ranks",
            "problem",
            str(error).strip().splitlines()[0],
            "the message says which rank and why",
        )
        return
    if list(run) == [2.0, 2.0]:
        yield Finding(
            "two ranks", "ok", f"started, reduced and returned in {run.total_seconds:.1f} s"
        )
    else:
        yield Finding(
            "two ranks", "problem", f"an all-reduce of ones gave {list(run)}", "please report this"
        )


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
