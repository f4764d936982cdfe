"""How long the planner searches on one core: for the best layout of so many devices, and for an answer to "what if".

    python benchmarks/planner_search.py                       # two minutes; 175 billion parameters on 1,024 and 10,000
    python benchmarks/planner_search.py --devices 256 --json results.json

Seconds of the processor, so that other work on the machine does not count. The aims: 10 s for 1,024 devices, 60 s for
10,000, and 0.2 s for "what if" (of all that is asked: the median, and the longest). The frontier has no aim.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtcourse.planner import Found, Model, search
from reporting import pairs

# GPT-3 (2005.14165, table 2.1), and by devices the sequences of a step: 3.1 million tokens, and four times as many.
GPT3 = Model(layers=96, hidden=12288, heads=96, vocabulary=50304, sequence=2048)
SEQUENCES = {1024: 1536, 10000: 6000}
AIMS = {1024: 10.0, 10000: 60.0}
WHAT_IF = 0.2


def timed(call: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[Any, float]:
    """What it returned, and the seconds that it computed."""
    start = time.process_time()
    result = call(*arguments, **named)
    return result, time.process_time() - start


def asked(found: Found) -> list[float]:
    """Seconds of what_if() with each value of each control, the others as the best has them."""
    values, _ = found.controls()
    took = []
    for name, some in values.items():
        for value in some:
            start = time.process_time()
            try:
                found.what_if(**{name: value})
            except ValueError:
                continue  # that layout is not possible
            took.append(time.process_time() - start)
    return took


def measured(devices: int, sequences: int) -> dict[str, Any]:
    """One search, and what is asked of it afterwards."""
    found, searching = timed(search, GPT3, "A100 SXM", devices, sequences)
    answers = asked(found)
    front, pareto = timed(found.pareto)
    return {
        "possible": found.listing.possible, "proven": found.proven, "best": str(found.best).strip(),
        "search_seconds": round(searching, 2), "aim_seconds": AIMS.get(devices),
        "what_if_seconds": {"median": round(statistics.median(answers), 3), "longest": round(max(answers), 3)},
        "pareto_seconds": round(pareto, 2), "frontier": len(front),
    }  # fmt: skip


def main() -> None:
    """Prints a paragraph for each number of devices."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--devices", type=int, nargs="+", default=list(SEQUENCES))
    parser.add_argument(
        "--sequences", type=int, help="of a step; default: 1,536, of 10,000 devices 6,000"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = pairs.begin("the planner's search: seconds of one core")
    for devices in options.devices:
        one = measured(devices, options.sequences or SEQUENCES.get(devices, 1536))
        results[str(devices)] = one
        aim = f" (aim {one['aim_seconds']:g})" if one["aim_seconds"] else ""
        answers = one["what_if_seconds"]
        print(
            f"{devices:,} devices, {one['possible']:,} possible layouts: {one['search_seconds']} s{aim}, "
            f"{'proven' if one['proven'] else 'not proven'}\n  {one['best']}\n"
            f"  what if: median {answers['median']} s, longest {answers['longest']} s (aim {WHAT_IF})\n"
            f"  frontier of {one['frontier']}: {one['pareto_seconds']} s",
            flush=True,
        )
    if options.json:
        pairs.write(results, options.json)


if __name__ == "__main__":
    main()
