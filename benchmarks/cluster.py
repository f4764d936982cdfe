"""A launch on a cluster against the other ways to start ranks on several nodes: wall time from the call to the result.

    python benchmarks/cluster.py --pairs 5          # writes benchmarks/results/cluster.json

It starts a Slurm of two nodes on this machine, which share its processors, and takes it down again. The work: four
ranks that all-reduce one number. The queue is empty, so what is measured is the start: `launch(..., cluster="slurm")`,
one agent per node that imports torch once; the same on nodes that an allocation holds; srun with one task per rank,
each of which imports torch; and torchrun under srun, with its own rendezvous. Ratios are of times, launch's over the
other's.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.launch import cluster
from dtcourse.launch.cluster.throwaway import ThrowawaySlurm
from reporting import pairs

RESULTS = Path(__file__).parent / "results" / "cluster.json"
RANKS, NODES = 4, 2


def step() -> float:
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return door.getsockname()[1]


def by_launch(where: str | None) -> None:
    run = launch(step, RANKS, nodes=NODES, cluster=where)
    assert list(run) == [RANKS] * RANKS


def by_srun(file: Path, torchrun: bool) -> None:
    python, port = sys.executable, free_port()
    tasks = 1 if torchrun else RANKS // NODES
    words = ["srun", f"--nodes={NODES}", f"--ntasks-per-node={tasks}", python, "-m"]
    if torchrun:
        words += [
            "torch.distributed.run",
            f"--nnodes={NODES}",
            f"--nproc-per-node={RANKS // NODES}",
        ]
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "-m"]
    words += ["dtcourse.launch", f"{file}:step"]
    around = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    if not torchrun:
        around |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done = subprocess.run(words, env=around, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert str(float(RANKS)) in done.stdout, done.stdout


def timed(way: Callable[[], object]) -> float:
    start = time.perf_counter()
    way()
    return time.perf_counter() - start


def main() -> None:
    """Runs it, prints a line a way and writes the results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    report = pairs.begin(
        f"{RANKS} ranks on {NODES} nodes of a Slurm on this machine: launch's wall time / another way's, "
        "median and quartiles of pairs"
    )
    with tempfile.TemporaryDirectory() as folder, ThrowawaySlurm(nodes=NODES):
        settings, file = Path(folder, "cluster.toml"), Path(folder, "work.py")
        settings.write_text(f'folder = "{folder}/jobs"\n')
        file.write_text(Path(__file__).read_text().partition("def free_port")[0])
        os.environ["DTCOURSE_CLUSTER"] = str(settings)
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        # Other settings, which the allocation is not for: each launch is a job of its own.
        own = Path(folder, "own.toml")
        own.write_text(settings.read_text())
        ways = {
            "launch": partial(by_launch, str(own)),
            "launch on held nodes": partial(by_launch, "slurm"),
            "launch on this machine": partial(by_launch, None),
            "srun, one task per rank": partial(by_srun, file, torchrun=False),
            "srun torchrun": partial(by_srun, file, torchrun=True),
        }
        steps = {name: partial(timed, way) for name, way in ways.items()}
        with cluster.allocation(nodes=NODES, ranks_per_node=RANKS // NODES):
            seconds = pairs.in_turns(steps, options.pairs)
    report["seconds"] = {name: round(statistics.median(each), 2) for name, each in seconds.items()}
    for name in list(ways)[1:]:
        report[name] = pairs.ratio(seconds["launch"], seconds[name])
        print(f"{name:24s} {pairs.in_words(report[name])}")
    for name, each in report["seconds"].items():
        print(f"{name:24s} {each:.2f} s")
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
