"""The ranks of one node, as its agent sees them."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from dtcourse.launch import processes, rank, serialization
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster.ends import Ends
from dtcourse.launch.cluster.folder import Writer
from dtcourse.launch.cluster.rendezvous import NodeRendezvous
from dtcourse.launch.interrupts import Interrupts


class NodeRanks(processes.Ranks):
    """The ranks of one node: what they say goes into the node's log, and they begin and leave with the other nodes'."""

    def __init__(
        self,
        settings: list[rank.Settings],
        payload: serialization.Payload,
        goes_on: bool,
        interrupts: Interrupts,
        rendezvous: NodeRendezvous,
        log: Writer,
        watch: Ends,
    ) -> None:
        def on_line(index: int, line: str) -> None:
            log.write((words.LINE, (settings[0].rank + index, line)))

        def on_message(number: int, message: Any) -> None:
            log.write((words.MESSAGE, (number, message)))

        super().__init__(settings, payload, on_line, on_message, goes_on, interrupts)
        self.bars = _Bars(log)  # type: ignore[assignment]
        self.rendezvous, self.limit, self.watch_ends = rendezvous, settings[0].timeout, watch
        self.log = log

    def __enter__(self) -> NodeRanks:
        super().__enter__()
        for member, cores in zip(self.members, _cores(len(self.members)), strict=False):
            with suppress(ProcessLookupError):  # it died; the loop says how
                os.sched_setaffinity(member.pid, cores)
        return self

    def _may_go_on(self) -> bool:
        """Ranks that Slurm has asked to end may still save what they have: it kills them when their time is over."""
        return self.watch_ends.ending.is_set()

    def _timed_out(self, limit: float, stacks: dict[int, str]) -> Exception:
        finished = {self.first + index for index in self.results}
        return NodeTimeout(limit, finished, {self.first + i: s for i, s in stacks.items()})

    def _say_go(self) -> None:
        self.rendezvous.barrier("begun", rank.START)
        super()._say_go()

    def _release(self) -> None:
        """A rank that left while another node's still work would look to them like one that had crashed."""
        self.log.write((words.ANSWERED, [settings.rank for settings in self.settings]))
        self.rendezvous.barrier("answered", None if self.limit is None else self.limit + rank.START)
        super()._release()


class NodeTimeout(Exception):
    """The time limit passed on this node: (seconds, {ranks that had finished}, {rank: stack}).

    The notebook writes one report for all nodes.
    """


class _Bars:
    """Sends the position of a bar to the notebook, which draws it."""

    def __init__(self, log: Writer) -> None:
        self._log = log

    def update(self, label: str, done: int, total: int | None) -> None:
        self._log.write((words.PROGRESS, (label, done, total)))

    def close(self) -> None:
        """Nothing is drawn here."""


def _cores(ranks: int) -> list[set[int]]:
    """Each rank's own cores, where Slurm has bound this node's task to at least one for each; else none.

    Without that, all jobs of a node see all of its cores, and each job's first rank would sit on the first one.
    """
    if "SLURM_CPU_BIND_TYPE" not in os.environ or not hasattr(os, "sched_getaffinity"):
        return []
    given = sorted(os.sched_getaffinity(0))
    each = len(given) // ranks
    return [set(given[i * each : (i + 1) * each]) for i in range(ranks)] if each else []
