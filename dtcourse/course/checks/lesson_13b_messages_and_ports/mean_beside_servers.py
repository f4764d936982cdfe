"""A mean that workers and servers make: no port carries more than another, and sums go back while more come."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import (
    Answer,
    Each,
    Exercise,
    require,
    require_close,
    require_received,
    trials,
)
from dtcourse.emulation import EmulatedNetwork
from dtcourse.plural import plural

SERVERS = Exercise(
    "mean_beside_servers",
    lesson="13b",
    title="A mean beside servers",
    takes=("mean_beside_servers",),
    target="equal to one process to 1e-12; at most 1.03 times the bytes of the best mix through any port, in at most "
    "1.3 times the seconds that those take",
    forbidden=("dtcourse.communication_scheduling",),
)

N = 6600  # numbers, of 8 bytes
WHOLE = 2e-3  # seconds that all of them take through a port
GROUPS = ((3, 1), (3, 2))  # workers, servers
BYTES, SECONDS = 1.03, 1.3  # times the best mix's
ROOM = 512  # bytes that a rank may send besides
# Of the gradient's bytes what passes the busiest port with the best mix; tests/course/test_mean_beside_servers.py finds
# it by trying all mixes.
BUSIEST = {(3, 1): 6 / 5, (3, 2): 12 / 11}


def _mean(mean_beside_servers: Any, x: Tensor, workers: int) -> Any:
    """On a rank: what its answer returns, the seconds, and the bytes received."""
    from dtcourse import emulation
    from dtcourse.collectives import traffic

    start = trials.begin_together()
    with traffic.counting() as counted:
        mean = mean_beside_servers(x, workers)
    return mean, emulation.now() - start, counted.bytes_received()


def _run(answer: Answer, workers: int, servers: int) -> tuple[Any, list[Tensor]]:
    """(run, the workers' vectors). A server begins with numbers that mean nothing."""
    vectors = [torch.randn(N, dtype=torch.double) for _ in range(workers)]
    own = Each([*vectors, *[torch.full_like(vectors[0], 99.0)] * servers])
    network = EmulatedNetwork(bandwidth=8 * N / WHOLE)
    how = {"backend": "ring", "clock": "virtual", "network": network, "record": True}
    return answer.run(_mean, workers + servers, own, workers, **how), vectors


def _where(workers: int, servers: int) -> str:
    return f"With {plural(workers, 'worker')} and {plural(servers, 'server')}"


@SERVERS.check("the mean is one process's", points=3)
def check_mean(answer: Answer) -> None:
    """On every worker, in double precision."""
    for workers, servers in GROUPS:
        run, vectors = _run(answer, workers, servers)
        right = torch.stack(vectors).mean(0)
        for rank in range(workers):
            got = run[rank][0]
            hint = "Whose numbers are where it differs, and was each worker's added once?"
            if isinstance(got, Tensor) and got.shape == right.shape:
                if torch.allclose(got.double(), workers * right):
                    hint = "That is the sum: by how many is it divided?"
                elif torch.allclose(got.double(), workers * right / (workers + servers)):
                    hint = "It is divided by all ranks: which of them have a gradient?"
            require_close(
                got, right, f"{_where(workers, servers)}, the mean on rank {rank}", 1e-12, hint
            )


@SERVERS.check("no port carries more than another", points=3, needs=("check_mean",))
def check_bytes(answer: Answer) -> None:
    """Counted, rank by rank."""
    for workers, servers in GROUPS:
        run, _ = _run(answer, workers, servers)
        best = 8 * N * BUSIEST[workers, servers]
        for rank in range(workers + servers):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent <= BYTES * best + ROOM,
                f"{_where(workers, servers)}, rank {rank} sends {sent:,} bytes, and with the best mix no rank sends "
                f"more than {best:,.0f}. Which part does each worker own, which one each server, and what does an "
                "owner send?",
            )
        for rank in range(workers):
            where = f"{_where(workers, servers)}, rank {rank}"
            require_received(where, run[rank][2], 8 * N)  # in each number of the mean are others'


@SERVERS.check("in time", points=4, needs=("check_mean",))
def check_seconds(answer: Answer) -> None:
    """On the emulated clock: both directions of a port are used at once."""
    for workers, servers in GROUPS:
        run, _ = _run(answer, workers, servers)
        slowest = max(run[rank][1] for rank in range(workers))
        best = WHOLE * BUSIEST[workers, servers]
        require(
            slowest <= SECONDS * best,
            f"{_where(workers, servers)}, the last worker has its mean after {1e3 * slowest:.2f} ms; the busiest port "
            f"needs {1e3 * best:.2f} ms for its bytes. Does anything go back before all of a part has come, and do all "
            "ranks begin with the same receiver?",
        )
