"""The machine: cores, memory, limits, network."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from dtcourse.course.doctor.findings import GB, Finding


def processors() -> Iterator[Finding]:
    """Cores and memory."""
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


def shared_memory() -> Iterator[Finding]:
    """/dev/shm."""
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


def limits() -> Iterator[Finding]:
    """Open files and processes."""
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


def network() -> Iterator[Finding]:
    """This machine by 127.0.0.1, and its interfaces."""
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
