"""How long a lost rank's state takes from a neighbour's memory, against a file: the two alternating in one run.

    python benchmarks/peer_copies.py [--megabytes 32] [--rounds 5] [--ranks 4]

Fully sharded weights and Adam's states. Recovery: rank 1 has nothing, and all go on from the same step, by
PeerCopies.recover() and by Checkpoints.latest() with TrainingState.load(). Both end with the same bits. The
file's pages are still in the system's cache, on this machine's disk: a cluster's file system is farther away, and so is
its network. Saving: for how long a rank stands still. Median of the rounds, the slowest rank.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch

WIDTH = 512


def measure(megabytes: int, rounds: int, folder: str) -> tuple[int, dict[str, list[float]]]:
    """Bytes of this rank's state, and seconds by what was done."""
    from dtcourse.fault_tolerance import Checkpoints, PeerCopies, RankState, TrainingState
    from dtcourse.sharding import fully_shard

    layers = max(1, megabytes * 2**20 // (3 * 4 * WIDTH * WIDTH))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, WIDTH)).sum().backward()
    optimizer.step()
    in_memory, in_file = RankState(model, optimizer), TrainingState.of(model, optimizer)
    checkpoints = Checkpoints(Path(folder), keep=1)
    copies = PeerCopies(in_memory)
    found: dict[str, list[float]] = {
        name: [] for name in ("save: memory", "save: file", "recover: memory", "recover: file")
    }

    def timed(name: str, act: Callable[[], object], warm: bool) -> None:
        dist.barrier()
        began = time.monotonic()
        act()
        dist.barrier()  # the slowest rank's
        if not warm:
            found[name].append(time.monotonic() - began)

    def from_file() -> None:
        latest = checkpoints.latest()
        assert latest is not None, "one has been saved in this round"
        in_file.load(latest)

    for number in range(1, rounds + 2):
        warm = number == 1
        timed("save: memory", partial(copies.after, number), warm)
        copies.finish()
        timed(
            "save: file",
            lambda n=number: checkpoints.save(n, in_file.snapshot(), in_file.about()),
            warm,
        )
        kept = None if dist.get_rank() == 1 else copies.kept
        size = copies.kept.own[number].bytes
        copies = PeerCopies(in_memory, kept=kept)
        timed("recover: memory", copies.recover, warm)
        timed("recover: file", from_file, warm)
    return size, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=32, help="weights and states, all ranks'")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=4)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = launch(
            measure, asked.ranks, asked.megabytes, asked.rounds, folder, timeout=None, device="cpu"
        )
    size, found = run[0]
    print(
        f"torch {torch.__version__}, gloo, {asked.ranks} ranks with {size / 2**20:.1f} MiB each; milliseconds, median "
        f"(smallest to largest) of {asked.rounds}"
    )
    for what in ("save", "recover"):
        memory, file = (found[f"{what}: {where}"] for where in ("memory", "file"))
        for where, seconds in (("memory", memory), ("file", file)):
            low, high = min(seconds) * 1e3, max(seconds) * 1e3
            middle = statistics.median(seconds) * 1e3
            print(f"  {what:8} {where:7} {middle:8.1f}  ({low:.1f} to {high:.1f})")
        pairs = [f / m for f, m in zip(file, memory, strict=True)]
        print(
            f"  {what:8} file / memory {statistics.median(pairs):5.1f}  ({min(pairs):.1f} to {max(pairs):.1f})"
        )


if __name__ == "__main__":
    main()
