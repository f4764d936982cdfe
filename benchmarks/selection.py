"""What it costs to find the numbers that travel, against a copy of the same memory: processor time of one thread.

    python benchmarks/selection.py --pairs 5          # writes benchmarks/results/selection.json

torch.topk looks at all numbers exactly; ours finds the same ones by a sample (dtcourse/compression/selection.py); a
threshold that is known, or sampled, takes a pass; places that are drawn take no look at the numbers. Ratios are of
times, a way's over the copy's. Processor time of this thread is what is counted, so that other work on the machine adds
what it takes from the caches and no more.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from dtcourse.compression import RandomK, SampledThreshold, Threshold, TopBlocks, TopK
from reporting import pairs

RESULTS = Path(__file__).parent / "results" / "selection.json"
RATIO = 0.01


def main() -> None:
    """Runs it, prints a line a way and writes the results file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--bytes", type=int, default=100_000_000)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    report = pairs.begin(
        f"{RATIO:.0%} of {options.bytes / 1e6:.0f} MB of float32 selected on one thread: processor time / a copy's, "
        "median and quartiles of pairs"
    )
    x = torch.randn(options.bytes // 4, generator=torch.Generator().manual_seed(0))
    room = torch.empty_like(x)
    k = int(RATIO * len(x))

    def whole() -> None:
        places = x.abs().topk(k, sorted=False).indices
        x[places]

    threshold = float(x.abs().kthvalue(len(x) - k).values)
    ways: dict[str, Callable[[], object]] = {
        "torch.topk": whole,
        "top-k by a sample": partial(TopK(RATIO).compress, x),
        "threshold sampled": partial(SampledThreshold(RATIO).compress, x),
        "threshold known": partial(Threshold(threshold).compress, x),
        "top blocks of 256": partial(TopBlocks(RATIO).compress, x),
        "random-k": partial(RandomK(RATIO).compress, x),
    }

    def timed(way: Callable[[], object]) -> float:
        start = time.thread_time()
        way()
        return time.thread_time() - start

    for name, way in ways.items():
        times = pairs.in_turns(
            {name: partial(timed, way), "copy": partial(timed, partial(room.copy_, x))},
            options.pairs,
        )
        report[name] = pairs.ratio(times[name], times["copy"], digits=2)
        print(f"{name:18s} {pairs.in_words(report[name])}", flush=True)
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
