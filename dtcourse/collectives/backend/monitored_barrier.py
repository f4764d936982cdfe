"""A barrier that says who did not come: dist.monitored_barrier, which torch has for gloo alone, on our backends.

The ranks meet in the store that formed the group, not by messages. So it works where messages do not, nothing is
counted as traffic, and a rank that never comes leaves no receive behind that nobody answers.

1. Each rank writes that it is here, and waits until all have.
2. Whoever has seen all of them writes that nobody is missing; whoever has waited long enough writes who is.
3. What was written first holds for all ranks, also for one that comes a moment later.

In gloo's, rank 0 alone asks: only its error names the missing ranks, and a missing rank 0 is waited for without end.
Here the error is the same on all ranks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

import torch.distributed as dist

SLICE = timedelta(seconds=0.2)  # how soon a rank notices that the group was given up meanwhile


def meet(
    store: dist.Store,
    rank: int,
    global_ranks: Sequence[int],
    timeout: timedelta,
    wait_all_ranks: bool = False,
    failure: Callable[[], BaseException | None] = lambda: None,
) -> None:
    """Returns when all ranks of a group have come; RuntimeError with those that did not within `timeout`.

    store:          for this meeting alone, by a connection that nobody else waits on
    rank:           this rank's number in the group; global_ranks: the members' in the default group
    wait_all_ranks: name all that are missing; else the first of them
    failure:        what the group was given up for, if it was
    """
    keys = [str(r) for r in range(len(global_ranks))]
    store.set(keys[rank], "here")
    until = time.monotonic() + timeout.total_seconds()
    while not store.check(["missing"]):
        missing: list[int] = []
        left = timedelta(seconds=max(until - time.monotonic(), 0.001))
        try:
            store.wait(keys, min(left, SLICE))
        except (dist.DistStoreError, RuntimeError):  # not all of them yet
            if (error := failure()) is not None:
                raise error from None
            if time.monotonic() < until:
                continue
            missing = [
                name for name, k in zip(global_ranks, keys, strict=True) if not store.check([k])
            ]
        store.compare_set("missing", "", json.dumps(missing))
    missing = json.loads(store.get("missing"))
    if missing:
        named = missing if wait_all_ranks else missing[:1]
        who = f"Rank{'s' if len(named) > 1 else ''} {', '.join(map(str, named))}"
        milliseconds = round(timeout.total_seconds() * 1000)
        raise RuntimeError(f"{who} failed to pass monitoredBarrier in {milliseconds} ms")
