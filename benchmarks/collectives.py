"""Our algorithms against gloo's own all-reduce, in pairs, in one run.

    python benchmarks/collectives.py --ranks 4 --bytes 16777216

Each round times gloo's all_reduce and then each of ours on the same group and the same vector, so a machine whose speed
drifts does the same to all. Prints the median of the ratios: below 1.0 ours is faster. "processor" is the same ratio of
the processors' time, all ranks' together, without what they wait: another program on the machine hardly changes it.

All move 2 (p - 1) vectors, and on two cores that is most of what they do: on four ranks the tree needs 0.9 of gloo's
processor time, ring and double tree 1.0, halving and doubling 1.0 to 1.2. What the seconds say beyond that is waiting.
In halving and doubling both partners have to be ready in each of 2 log2 p steps, and nothing else is under way
meanwhile; near the root of a tree two ranks work, and the others wait; so these stay at 1.05 to 1.2. A ring and a
double tree have chunks under way on every rank. The double tree took 1.9 with chunks of 512 KB: on a loopback it is
messages that cost, and a half of 8 MB in chunks of 4 MB has two.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives.algorithms import ALGORITHMS
from reporting import pairs

RESULTS = Path(__file__).parent / "results" / "collectives.json"
# Those on one level; hierarchical needs nodes.
FLAT = [
    each
    for each in ALGORITHMS.values()
    if each.terms is not None and hasattr(each.module, "all_reduce")
]


def rounds(nbytes: int, count: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each all-reduce on this rank, and its processor's, round by round."""
    x = torch.ones(nbytes // 4)
    calls = {"gloo": dist.all_reduce}
    calls |= {each.name: each.module.all_reduce for each in FLAT}

    def seconds(name: str) -> tuple[float, float]:
        x.fill_(1.0)
        dist.barrier()
        start, worked = time.perf_counter(), time.process_time()
        calls[name](x)
        return time.perf_counter() - start, time.process_time() - worked

    return pairs.in_turns({name: partial(seconds, name) for name in calls}, count)


def main() -> None:
    """Runs the comparison and prints a line an algorithm."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--bytes", type=int, default=16 << 20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    report = pairs.begin(
        f"all_reduce of {options.bytes:,} bytes on {options.ranks} ranks; seconds "
        "/ gloo's, median and quartiles of pairs"
    )
    run = launch(rounds, options.ranks, options.bytes, options.rounds, device="cpu", timeout=600.0)
    seconds = pairs.over_ranks(run, lambda ranks: max(wall for wall, _ in ranks))
    worked = pairs.over_ranks(run, lambda ranks: sum(processor for _, processor in ranks))
    for name, each in pairs.milliseconds(seconds).items():
        report[name] = pairs.ratio(seconds[name], seconds["gloo"]) | {"milliseconds": each}
        report[f"{name}, processor"] = pairs.ratio(worked[name], worked["gloo"])
        print(f"{name:17s}{each:8.1f} ms   / gloo {pairs.in_words(report[name])}", end="   ")
        print(f"processor {pairs.in_words(report[f'{name}, processor'])}")
    pairs.write(report, options.output)


if __name__ == "__main__":
    main()
