"""Our algorithms against gloo's own all-reduce, in pairs, in one run.

    python benchmarks/collectives.py --ranks 4 --bytes 16777216

Each round times gloo's all_reduce and then each of ours on the same group and the same vector, so a machine whose speed
drifts does the same to all. Prints the median of the ratios: below 1.0 ours is faster.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time

import torch
import torch.distributed as dist

from dtcourse import launch

ALGORITHMS = ("ring", "halving_doubling", "double_tree", "tree", "naive")


def rounds(nbytes: int, count: int) -> dict[str, list[float]]:
    """Seconds of each all-reduce on this rank, round by round; the first two rounds are not kept."""
    x = torch.ones(nbytes // 4)
    calls = {"gloo": dist.all_reduce}
    calls |= {
        n: importlib.import_module(f"dtcourse.collectives.{n}").all_reduce for n in ALGORITHMS
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(count + 2):
        for name, call in calls.items():
            dist.barrier()
            start = time.perf_counter()
            call(x)
            times[name].append(time.perf_counter() - start)
            x.fill_(1.0)
    return {name: seconds[2:] for name, seconds in times.items()}


def main() -> None:
    """Runs the comparison and prints a line an algorithm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=16 << 20)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    run = launch(rounds, options.ranks, options.bytes, options.rounds, device="cpu", timeout=600.0)
    slowest = {n: [max(t) for t in zip(*(r[n] for r in run), strict=True)] for n in run[0]}
    print(f"all_reduce of {options.bytes:,} bytes; {run.layout}")
    for name, times in slowest.items():
        ratios = [a / b for a, b in zip(times, slowest["gloo"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{name:17s}{statistics.median(times) * 1e3:8.1f} ms   / gloo {middle:5.2f}   (quartiles {low:.2f} to {high:.2f})"
        )


if __name__ == "__main__":
    main()
