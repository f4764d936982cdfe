"""What this machine can run and what not, and what to do about it. Each finding is looked for, not assumed.

software.py   Python and what is installed in it
machine.py    cores, memory, limits, network
training.py   PyTorch, GPUs, backends, two ranks
proof.py      what the course does all the time, each once: two minutes
cluster.py    the same of a cluster's nodes, by a small job
findings.py   what is found
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator

from dtcourse.course.doctor import machine, proof, software, training
from dtcourse.course.doctor.findings import Finding
from dtcourse.launch import server, waiting

__all__ = ["Finding", "examine"]


def examine(launch_ranks: bool = True, prove: bool = False) -> Iterator[Finding]:
    """Look at everything and give each finding as it is found; a part that fails to look says so and stops no other.

    prove: then compare a collective, write and read a checkpoint, execute a lesson and judge an exercise
    """
    parts: list[tuple[Callable[[], Iterator[Finding]], str]] = [
        (software.python, "asking this Python"),
        (software.packages, "looking for packages"),
        (machine.processors, "counting cores"),
        (machine.shared_memory, "measuring shared memory"),
        (machine.limits, "reading limits"),
        (software.grading, "starting bubblewrap"),
        (machine.network, "connecting to this machine"),
        (software.kernel, "asking Jupyter for its kernel"),
        (training.pytorch, "importing PyTorch"),
        (training.gpus, "looking for GPUs"),
        (training.backends, "asking for backends"),
    ]
    if launch_ranks:
        parts.append((training.two_ranks, "launching two ranks"))
        _start_server()
    if prove:
        parts += [
            (proof.collective, "comparing an all-reduce with gloo's"),
            (proof.checkpoint, "writing and reading a checkpoint"),
            (proof.lesson, "executing a lesson"),
            (proof.exercise, "judging an exercise"),
        ]
    for part, doing in parts:
        try:
            with waiting.saying(doing):
                findings = list(part())
        except Exception as error:  # whatever a strange machine does, the others are still wanted
            name = part.__name__.replace("_", " ")
            said = f"could not be looked at: {type(error).__name__}: {error}"
            findings = [Finding(name, "note", said)]
        yield from findings


def _start_server() -> None:
    """The ranks' server imports PyTorch while we do."""
    if sys.platform != "win32" and importlib.util.find_spec("torch") is not None:
        server.start_early()
