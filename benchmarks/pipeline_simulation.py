"""How long a large schedule takes to make, to prove and to simulate, on one core.

    python benchmarks/pipeline_simulation.py --stages 256 --micro-batches 2048

Seconds of the processor, so that other work on the machine does not count. The aim: 10 s for each schedule, all in all.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from dtcourse.pipeline_parallel.schedules import one_f_one_b
from dtcourse.pipeline_parallel.simulate import Times, simulate
from dtcourse.pipeline_parallel.validate import validate
from dtcourse.pipeline_parallel.zero_bubble import zb_h1


def timed(call: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """What it returned, and the seconds that it computed."""
    start = time.process_time()
    result = call(*arguments)
    return result, time.process_time() - start


def main() -> None:
    """Prints a line a schedule."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--stages", type=int, default=256)
    parser.add_argument("--micro-batches", type=int, default=2048)
    options = parser.parse_args()
    for make in (one_f_one_b, zb_h1):
        schedule, making = timed(make, options.stages, options.micro_batches)
        _, proving = timed(validate, schedule)
        found, both = timed(simulate, schedule, Times(1.0, 1.0, 0.5, transfer=0.1))
        actions = sum(map(len, schedule))
        print(
            f"{found!r}\n  {actions:,} actions: made {making:.2f} s, proved {proving:.2f} s, "
            f"proved and simulated {both:.2f} s; {making + both:.2f} s in all"
        )


if __name__ == "__main__":
    main()
