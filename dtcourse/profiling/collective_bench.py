"""Latency and bus bandwidth over message sizes, measured inside the ranks of a running group.

`dtcourse bench collectives` launches it for every backend; on several nodes, every rank runs the same function:

    torchrun ... -m dtcourse.launch --backend ring dtcourse/profiling/collective_bench.py:main --collective all_reduce

A barrier is no start gun: it lets ranks go up to two latencies apart, and a clock that each rank starts where *it*
leaves one measures that, too. So on the virtual clock, which all ranks share, they start at one moment
(`start_together`). Real machines have no such clock: there one look at a rank's own clock spans many calls, as in
nccl-tests, and what ranks left the barrier apart is divided by their number.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from dtcourse import device, emulation, events, torch_private
from dtcourse.emulation import clock
from dtcourse.plural import plural
from dtcourse.simulator import collective_cost as cost

SIZES = tuple(1 << k for k in range(10, 25, 2))  # 1 KiB to 16 MiB
CALLS = 5  # in a row, for one measurement on a real machine
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all")


def sweep(
    collective: str = "all_reduce", sizes: Sequence[int] = SIZES, repeats: int = 10, warmup: int = 3
) -> list[dict[str, float]]:
    """Times a collective at each size (bytes, float32). To be called by every rank of the default group.

    A time is that of the slowest rank (`seconds_of_one`); each row has bytes, seconds (median), fastest, slowest,
    algorithm and bus bandwidth in bytes a second (nccl-tests' definitions).
    """
    if collective not in COLLECTIVES:
        raise ValueError(
            f"there is no benchmark of {collective!r}; there are {', '.join(COLLECTIVES)}"
        )
    if repeats < 1:
        raise ValueError(f"repeats is at least 1; got {repeats}")
    ranks = dist.get_world_size()
    rows = []
    for nbytes in sizes:
        # a whole number of elements for each rank
        elements = max(ranks, nbytes // 4 // ranks * ranks)
        call = _call(collective, elements)
        for _ in range(warmup):
            call()
        times = [seconds_of_one(call) for _ in range(repeats)]
        median, actual = statistics.median(times), elements * 4
        rows.append({
            "bytes": actual,
            "seconds": median,
            "fastest": min(times),
            "slowest": max(times),
            "algorithm_bandwidth": actual / median,
            "bus_bandwidth": cost.bus_bandwidth(collective, actual, median, ranks),
        })  # fmt: skip
    return rows


def seconds_of_one(call: Callable[[], Any], calls: int = CALLS) -> float:
    """Seconds of one call: the slowest rank's. To be called by every rank of the default group.

    calls: made in a row between two looks at the clock, where the clock is a real machine's
    """
    line_up()
    if _virtual():
        calls = 1
    device.synchronize()
    start = events.now()
    for _ in range(calls):
        call()
    device.synchronize()
    return _most((events.now() - start) / calls)


def line_up() -> None:
    """Every rank of the default group goes on at one moment, as nearly as the clock lets them."""
    dist.barrier()
    if _virtual():
        start_together()


def start_together() -> None:
    """Every rank of the default group goes on at one moment of the virtual clock, which all of them share.

    The moment has to be later than all of them know of it. Between the earliest rank's clock before a first all-reduce
    and the latest rank's after it lies at least what an all-reduce takes; so a second one, that starts at the latest
    clock or before, is over by then. Raises ValueError on any other clock.
    """
    if not _virtual():
        raise ValueError('ranks start together on the virtual clock: launch(..., clock="virtual")')
    earliest = -_most(-emulation.now())
    latest = _most(emulation.now())
    emulation.sleep(latest + 2 * (latest - earliest) - emulation.now())


def _virtual() -> bool:
    installed = clock.installed()
    return installed is not None and not installed.arrival_decides


def _most(mine: float) -> float:
    """The largest of all ranks' numbers."""
    found = torch.tensor([mine], dtype=torch.float64, device=device.current())
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.item()


def _call(collective: str, elements: int) -> Callable[[], Any]:
    """The collective on fresh tensors; nbytes is that of the whole vector, as in collective_cost.py."""
    ranks, where = dist.get_world_size(), device.current()
    whole = torch.ones(elements, device=where)
    part = torch.ones(elements // ranks, device=where)
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(whole),
        "broadcast": lambda: dist.broadcast(whole, 0),
        "reduce": lambda: dist.reduce(whole, 0),
        "reduce_scatter": lambda: torch_private.reduce_scatter_single(part, whole),
        "all_gather": lambda: torch_private.all_gather_single(whole, part),
        "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(whole), whole),
    }
    return calls[collective]


def ping_pong(
    sizes: Sequence[int] = SIZES, repeats: int = 10, warmup: int = 3
) -> list[tuple[int, float]]:
    """One-way time of a message between ranks 0 and 1, at each size: half a round trip. For cost.fit."""
    rank = dist.get_rank()
    if dist.get_world_size() < 2:
        raise ValueError("a ping-pong needs two ranks")
    result = []
    for nbytes in sizes:
        ball = torch.zeros(max(1, nbytes // 4), device=device.current())
        times = []
        for i in range(warmup + repeats):
            dist.barrier()
            start = events.now()
            if rank == 0:
                dist.send(ball, 1)
                dist.recv(ball, 1)
            elif rank == 1:
                dist.recv(ball, 0)
                dist.send(ball, 0)
            if i >= warmup:
                times.append((events.now() - start) / 2)
        result.append((ball.nbytes, statistics.median(times)))
    return result


def reduction_seconds_per_byte(nbytes: int = 1 << 22, repeats: int = 10) -> float:
    """Gamma of this processor: the time of adding two float32 vectors in memory, a byte of one of them."""
    a, b = torch.ones(nbytes // 4), torch.ones(nbytes // 4)
    times = []
    for _ in range(repeats):
        start = events.now()
        torch.add(a, b, out=a)
        times.append(events.now() - start)
    return statistics.median(times) / nbytes


def main(collective: str = "all_reduce", largest: int = 1 << 24) -> str | None:
    """For torchrun: a table on rank 0."""
    rows = sweep(collective, [s for s in SIZES if s <= largest])
    if dist.get_rank():
        return None
    lines = [f"{collective}, {plural(dist.get_world_size(), 'rank')}, backend {dist.get_backend()}"]
    lines += [f"{'bytes':>12} {'us':>12} {'busbw MB/s':>12}"]
    lines += [
        f"{r['bytes']:12.0f} {r['seconds'] * 1e6:12.1f} {r['bus_bandwidth'] / 1e6:12.1f}"
        for r in rows
    ]
    return "\n".join(lines)
