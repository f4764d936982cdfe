"""What training needs: PyTorch, GPUs, backends, and ranks that really start."""

from __future__ import annotations

import importlib.util
import re
import shutil
from collections.abc import Iterator

from dtcourse.course.doctor.findings import Finding, said


def pytorch() -> Iterator[Finding]:
    """Its version."""
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


def gpus() -> Iterator[Finding]:
    """How many, and how they are linked."""
    from dtcourse import device

    count = device.count()
    if not count:
        if shutil.which("nvidia-smi"):
            listed = said(["nvidia-smi", "-L"])
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
    links = links_of(said(["nvidia-smi", "topo", "-m"]))
    yield Finding(
        "GPU links",
        "ok" if links else "note",
        links or "nvidia-smi does not say how they are linked",
    )


def links_of(table: str) -> str:
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


def backends() -> Iterator[Finding]:
    """PyTorch's, and mpirun."""
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
        version = (said([mpirun, "--version"]).splitlines() or ["found"])[0]
        yield Finding("mpirun", "ok", version)
    else:
        yield Finding(
            "mpirun",
            "note",
            "not found",
            "only lesson 05's section on MPI wants it (apt install openmpi-bin)",
        )


def _rank_says() -> float:
    import torch
    import torch.distributed as dist

    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return float(tensor[0])


def two_ranks() -> Iterator[Finding]:
    """An all-reduce over two of them."""
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
