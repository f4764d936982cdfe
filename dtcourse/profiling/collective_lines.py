"""What collectives achieve here, beside what the link's own alpha-beta-gap line says that they should.

    lines = launch(collective_lines, 4, backend="ring")[0]       # inside the ranks: of the default group
    print(lines[0])                                              # measured, predicted, ratio, at each size

The link comes from messages alone: a ping-pong gives alpha + gap and beta, a burst of messages the gap
(`measured_link`). The prediction is then the textbook's: the algorithm's critical path on that link
(simulator.collective_cost). No collective has been fitted for it, so the two are independent of each other, and their
ratio says what the link does not explain: the processor, ranks that share a core, or another algorithm.

Each collective gets its own line too, fitted to its own times: its latency (what an empty one would take) and the bus
bandwidth that ever larger ones come near.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from dtcourse import device, events
from dtcourse.collectives.algorithms import ALGORITHMS
from dtcourse.collectives.terms import Link
from dtcourse.plural import plural
from dtcourse.profiling import collective_bench as bench
from dtcourse.simulator import collective_cost as cost

MESSAGES = 16  # of a burst


@dataclass(frozen=True)
class Achieved:
    """One collective of one size.

    bytes:         of the whole vector, as in collective_cost
    seconds, predicted: of the slowest rank
    bus_bandwidth: bytes per second, as nccl-tests defines it
    """

    bytes: int
    seconds: float
    predicted: float
    bus_bandwidth: float

    @property
    def ratio(self) -> float:
        """Predicted / measured: 1 where the link explains it all, less where something else takes time."""
        return self.predicted / self.seconds


@dataclass(frozen=True)
class CollectiveLine:
    """One collective over all sizes.

    collective, algorithm: which, and whose critical path the prediction is
    ranks:      how many
    link:       what messages said of it
    rows:       one a size
    latency:    seconds that an empty one takes, by the line fitted to its own times
    bandwidth:  bytes per second: the bus bandwidth that larger ones come near, by the same line; infinite where bytes
                cost nothing
    """

    collective: str
    algorithm: str
    ranks: int
    link: Link
    rows: tuple[Achieved, ...]
    latency: float
    bandwidth: float

    def __str__(self) -> str:
        lines = [
            f"{self.collective} on {plural(self.ranks, 'rank')}, predicted as {self.algorithm}: "
            f"latency {self.latency * 1e6:.1f} us, bus bandwidth {self.bandwidth / 1e6:,.1f} MB/s",
            f"{'bytes':>12}{'us':>12}{'predicted':>12}{'ratio':>8}{'busbw MB/s':>12}",
        ]
        lines += [
            f"{row.bytes:12,}{row.seconds * 1e6:12.1f}{row.predicted * 1e6:12.1f}{row.ratio:8.2f}"
            f"{row.bus_bandwidth / 1e6:12,.1f}"
            for row in self.rows
        ]
        return "\n".join(lines)


def collective_lines(
    collectives: Sequence[str] = bench.COLLECTIVES,
    sizes: Sequence[int] = bench.SIZES,
    repeats: int = 10,
    *,
    link: Link | None = None,
) -> list[CollectiveLine]:
    """Measures the link, then each collective. To be called by every rank of the default group.

    sizes: in bytes, two or more different ones
    link:  where it is known already; None measures it

    Raises ValueError for one rank, for one size, or for a collective that there is no benchmark of.
    """
    ranks = dist.get_world_size()
    if ranks < 2:
        raise ValueError("a collective's time needs two ranks or more; this group has one")
    if len(set(sizes)) < 2:
        raise ValueError(f"a line needs two sizes or more; got {list(sizes)}")
    link = measured_link(sizes, repeats) if link is None else link
    found = []
    for collective in collectives:
        rows = bench.sweep(collective, sizes, repeats)
        algorithm = algorithm_of(dist.get_backend(), collective)
        own = cost.fit([row["bytes"] for row in rows], [row["seconds"] for row in rows])
        found.append(
            CollectiveLine(
                collective,
                algorithm,
                ranks,
                link,
                tuple(
                    Achieved(
                        int(row["bytes"]),
                        row["seconds"],
                        cost.seconds(algorithm, collective, row["bytes"], ranks, link),
                        row["bus_bandwidth"],
                    )
                    for row in rows
                ),
                own.alpha,
                cost.BUS_FACTORS[collective](ranks) * own.bandwidth,
            )
        )
    return found


def algorithm_of(backend: str, collective: str) -> str:
    """Which algorithm a backend of ours takes for a collective. Of gloo's and NCCL's, what is nearest: they choose for
    themselves, so there a ratio far from 1 may be another algorithm's.
    """
    own = ALGORITHMS.get(backend)
    names = ("ring", "tree", "pairwise") if own is None else (own.name, *(own.others or ()))
    if own is None and collective in ("broadcast", "reduce"):
        return "tree"
    for name in names:
        try:
            cost.terms(name, collective, 1.0, 2)
        except ValueError:
            continue
        return name
    raise ValueError(f"there is no model of {backend}'s {collective}")


# --- the link ---------------------------------------------------------------------------------------------------


def measured_link(sizes: Sequence[int] = bench.SIZES, repeats: int = 10) -> Link:
    """Alpha, gap and beta of the link between ranks 0 and 1, the same Link on every rank of the default group."""
    single = bench.ping_pong(sizes, repeats)
    nbytes, many = burst(min(sizes), MESSAGES, repeats)
    found = link_of(single, nbytes, many, MESSAGES)
    numbers = torch.tensor(
        [found.alpha, found.beta, found.gap], dtype=torch.float64, device=device.current()
    )
    dist.broadcast(numbers, 0)
    alpha, beta, gap = numbers.tolist()
    return Link(alpha, beta, gap=gap)


def link_of(
    single: Sequence[tuple[int, float]], nbytes: int, burst_seconds: float, messages: int
) -> Link:
    """The link on which single messages take `single` (bytes, seconds), and a burst of `messages` of `nbytes` so long.

    A message takes alpha + gap + n beta; each further one of a burst waits for the port, gap + n beta. A gap cannot be
    longer than an empty message.
    """
    if messages < 2:
        raise ValueError(f"a burst is 2 messages or more; got {messages}")
    line = cost.fit([size for size, _ in single], [seconds for _, seconds in single])
    one = line.alpha + nbytes * line.beta
    gap = (burst_seconds - one) / (messages - 1) - nbytes * line.beta
    gap = min(max(gap, 0.0), line.alpha)
    return Link(line.alpha - gap, line.beta, gap=gap)


def burst(nbytes: int, messages: int, repeats: int = 10, warmup: int = 3) -> tuple[int, float]:
    """Bytes of a message, and seconds from the first of several messages' start to the last one's arrival. All ranks.

    Rank 0 sends them, posted together; rank 1 answers with one, whose own way (half of a ping-pong) is taken off.
    """
    rank = dist.get_rank()
    balls = [torch.zeros(max(1, nbytes // 4), device=device.current()) for _ in range(messages)]
    times = []
    for i in range(warmup + repeats):
        taken = []
        for several in (balls, balls[:1]):
            dist.barrier()
            start = events.now()
            if rank == 0:
                for work in [dist.isend(ball, 1) for ball in several]:
                    work.wait()  # type: ignore[union-attr]
                dist.recv(balls[0], 1)
            elif rank == 1:
                for work in [dist.irecv(ball, 0) for ball in several]:
                    work.wait()  # type: ignore[union-attr]
                dist.send(balls[0], 0)
            taken.append(events.now() - start)
        if i >= warmup:
            times.append(taken[0] - taken[1] / 2)
    return balls[0].nbytes, statistics.median(times)
