"""BytePS: machines without GPUs help to sum, and take just so much that no port waits for another.

n workers hold gradients of M bytes, k servers hold none and have their network to give. The gradient is cut into a part
for each of them, x bytes for a worker and y for a server, n x + k y = M. Whoever owns a part sums it:

    push   every worker sends each part to its owner, and keeps its own
    pull   the owner sends the sum back to every worker

A worker sends M - x and, as an owner, (n - 1) x; a server sends n y; each receives as much. Parts travel in chunks, so
that one is pulled while the next is pushed, and what counts is the busiest port. Worker and server take equally long
where

    y = 2 (n - 1) M / (n^2 / s + k (n - 2))      s: a server's bandwidth in units of a worker's
    x = (M - k y) / n

k = 0 is the all-reduce, 2 (n - 1)/n M bytes. From k s = n on, all of it goes to the servers, and M is enough: a
parameter server at its best. In between both together are faster than either.

Bytes of a worker: M + (n - 2) x; of a server: n y. Here is the mix; push_pull.py carries it out.
Source: Jiang et al. 2020, "A unified architecture for accelerating distributed DNN training in heterogeneous GPU/CPU
clusters" (BytePS, OSDI), section 4.1, where s = 1.
"""

from dtcourse.collectives.chunks import even_bounds


def shares(
    num_workers: int, num_servers: int, server_speed: float = 1.0, at_servers: float | None = None
) -> tuple[float, float]:
    """x / M and y / M: the share of the gradient that one worker sums, and one server.

    server_speed: s;  at_servers: how much of M all servers together take; default: the optimal mix
    Raises ValueError where there is nobody to sum.
    """
    n, k, s = num_workers, num_servers, server_speed
    if n < 1 or k < 0 or not s > 0:
        raise ValueError(
            f"there are 1 worker or more, 0 servers or more, of a speed above 0; got {n}, {k} and {s}"
        )
    if at_servers is None:
        best = 2 * (n - 1) / (n * n / s + k * (n - 2)) if k and n > 1 else 0.0
        at_servers = min(1.0, k * best)
    if not 0 <= at_servers <= 1 or (at_servers and not k):
        raise ValueError(
            f"{k} servers take a part between 0 and {1 if k else 0} of the gradient; got at_servers={at_servers}"
        )
    return (1 - at_servers) / n, at_servers / k if k else 0.0


def push_pull_seconds(
    nbytes: float,
    bandwidth: float,
    num_workers: int,
    num_servers: int,
    server_speed: float = 1.0,
    at_servers: float | None = None,
) -> float:
    """How long the busiest port is busy. bandwidth: a worker's, in bytes per second, each way."""
    x, y = shares(num_workers, num_servers, server_speed, at_servers)
    worker = (1 - x) + (num_workers - 1) * x
    server = num_workers * y / server_speed
    return max(worker if num_workers > 1 else 0.0, server) * nbytes / bandwidth


def part_bounds(elements: int, num_workers: int, elements_at_servers: int) -> list[int]:
    """Where the workers' parts begin and end; the servers' follow."""
    return even_bounds(elements - elements_at_servers, num_workers)
