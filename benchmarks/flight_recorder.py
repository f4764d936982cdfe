"""What the flight recorder costs: processor time of a call, with it and without, the two alternating in one run.

    python benchmarks/flight_recorder.py [--calls 200] [--rounds 7] [--out benchmarks/results/flight_recorder.json]

Processor time of the thread that calls, which does all that the recorder adds but for a look a second, on two ranks
that exchange small tensors: a call cannot cost less, so the recorder's share cannot be larger. Median of the rounds.
The file says besides what part of a step of 50 ms that is, and how many calls in such a step make 2% of it.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from dtcourse import launch
from reporting import pairs

STEP, LEAST = 0.050, 0.02  # seconds of a step, and the part of it that recording may cost


def measure(calls: int, rounds: int, folder: str) -> dict[str, dict[bool, list[float]]]:
    from dtcourse.collectives import flight

    x, other = torch.ones(8), 1 - dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))

    def all_reduce() -> None:
        dist.all_reduce(x)

    def asynchronous() -> None:
        dist.all_reduce(x, async_op=True).wait()

    def message() -> None:
        if other:
            dist.send(x, other)
        else:
            dist.recv(x, other)

    def ddp_step() -> None:
        model(torch.ones(1, 8)).sum().backward()

    found = {}
    for call in (all_reduce, asynchronous, message, ddp_step):
        seconds = {False: [], True: []}
        for turn in range(2 * rounds + 2):
            records = bool(turn % 2)
            if records:
                flight.start(folder)
            dist.barrier()
            begun = time.thread_time()
            for _ in range(calls):
                call()
            used = (time.thread_time() - begun) / calls
            dist.barrier()
            flight.stop()
            if turn >= 2:  # the first of each warms up
                seconds[records].append(used)
        found[call.__name__] = seconds
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--calls", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    report = pairs.begin(
        "processor time of a call with the flight recorder and without, alternating in one run, 2 ranks"
    )
    with tempfile.TemporaryDirectory() as folder:
        run = launch(measure, 2, asked.calls, asked.rounds, folder, timeout=None)
    print(
        f"torch {torch.__version__}, gloo, 2 ranks; microseconds of processor time a call, rank 0"
    )
    print(f"{'call':14} {'without':>8} {'with':>8} {'more':>8}   smallest and largest, with")
    calls = {}
    for name, seconds in run[0].items():
        without, used = (statistics.median(seconds[key]) * 1e6 for key in (False, True))
        spread = f"{min(seconds[True]) * 1e6:.1f} to {max(seconds[True]) * 1e6:.1f}"
        print(f"{name:14} {without:8.1f} {used:8.1f} {used - without:8.1f}   {spread}")
        more = used - without
        calls[name] = {
            **pairs.ratio(seconds[True], seconds[False]),
            "without_us": [round(one * 1e6, 1) for one in seconds[False]],
            "with_us": [round(one * 1e6, 1) for one in seconds[True]],
            "more_us": round(more, 1),
            "of_a_50_ms_step": round(more / (STEP * 1e6), 5),
            "calls_for_2_percent_of_it": int(LEAST * STEP * 1e6 / more) if more > 0 else None,
        }
    if asked.out:
        pairs.write({**report, "calls_a_round": asked.calls, "calls": calls}, asked.out)


if __name__ == "__main__":
    main()
