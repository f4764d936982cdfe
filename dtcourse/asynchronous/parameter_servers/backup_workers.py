"""Backup workers: synchronous updates that do not wait for the slowest (Chen et al., arXiv 1604.00981).

Of p workers, b are spare: an update is made of the first p - b gradients that have come for it, and those workers are
answered. A gradient that comes later was computed from parameters that are no more: it is dropped, and its worker gets
the new ones at once. So no applied gradient is stale, and the price is work that is thrown away: up to b gradients an
update. No worker is spare by name. Whoever is slow in this step is.

Bytes in a step are those of the parameter server (parameter_server.py): a gradient that is dropped has travelled.
"""

from __future__ import annotations

from dtcourse.asynchronous.parameter_servers.update_rules import Serving


class BackupWorkers:
    """The update rule: waits for all workers but `num_backups`, applies the mean, drops what comes later.

    Where workers end or are lost, it waits for the same number of gradients as long as so many take part.

    Raises ValueError for a number below 0; a server does where no worker would be left to wait for.
    """

    arrival_decides = True

    def __init__(self, num_backups: int) -> None:
        if isinstance(num_backups, bool) or not isinstance(num_backups, int) or num_backups < 0:
            raise ValueError(f"the number of backups is 0 or more; got {num_backups!r}")
        self.num_backups = num_backups
        self._here: list[int] = []

    def check(self, num_workers: int) -> None:
        if self.num_backups >= num_workers:
            raise ValueError(
                f"{self.num_backups} backups of {num_workers} workers leave no gradient to wait for: at most "
                f"{num_workers - 1}"
            )

    def received(self, server: Serving, worker: int) -> None:
        if server.pulled[worker] < server.version:
            server.drop(worker)
            server.answer([worker])
            return
        self._here.append(worker)
        self._update(server)

    def left(self, server: Serving, worker: int) -> None:
        self._update(server)

    def _update(self, server: Serving) -> None:
        wanted = server.num_workers - self.num_backups
        possible = len(set(server.active) | set(self._here))
        if self._here and len(self._here) >= min(wanted, possible):
            here, self._here = sorted(self._here), []
            server.apply(here, weight=1 / len(here))
            server.answer(here)
