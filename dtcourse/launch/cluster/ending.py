"""How a job's end is told: one exception out of what its nodes have said, and of the silence of those that are gone."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dtcourse.launch import failures, options
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster.record import JobFailed, Record
from dtcourse.launch.cluster.scheduler import Scheduler, Transport
from dtcourse.launch.cluster.settings import Settings

QUIET = 4 * words.BEAT  # seconds without a sign of a node whose ranks' connections have ended
SLOW = 30.0  # that a node may take, after the echo's time, to say why its ranks went


class Ending:
    """What is known of a job (Job fills it in), and what to raise of it."""

    folder: Path
    record: Record
    settings: Settings
    layout: options.Layout
    scheduler: Scheduler
    transport: Transport
    parts: list[range]
    names: dict[int, str]
    results: dict[int, Any]
    answered: set[int]
    beats: dict[int, float]
    reported: set[int]
    failed: list[failures.Failure]
    timeouts: list[tuple[float, set[int], dict[int, str]]]
    gone: bool

    def _raise(self, state: tuple[str, str, str]) -> None:
        """One exception out of what all nodes have said."""
        world_size = self.layout.world_size
        if not self.failed and self.timeouts:
            limit = self.timeouts[0][0]
            finished = self.answered.union(self.results, *(done for _, done, _ in self.timeouts))
            stacks = {index: stack for _, _, some in self.timeouts for index, stack in some.items()}
            raise failures.rank_timeout(limit, finished, stacks, world_size)
        if not self.names:
            raise self._never_began(state[0])
        lost = self._lost(state)
        if not self.failed and not lost and state[0] not in ("FAILED", "NODE_FAIL", "COMPLETED"):
            raise self._broken(self.scheduler.describe(state[0], self.settings, self.record.job))
        every = self.failed + lost
        if not every:
            raise self._broken(
                self.scheduler.describe(state[0], self.settings, self.record.job)
                + self.transport.wrote()
            )
        failure = failures.rank_failure(every, world_size)
        if lost:
            self.gone = True
            sentences = [
                f"node {name} went silent; "
                + (
                    f"rank {ranks[0]} was"
                    if len(ranks) == 1
                    else f"ranks {', '.join(map(str, ranks))} were"
                )
                + " on it"
                for name, ranks in self._of_lost(lost).items()
            ]
            failure = failures.RankFailure(
                ". ".join([*sentences, str(failure)]), failure.failures, world_size
            )
        raise failure from failure.failures[0].exception

    def _lost(self, state: tuple[str, str, str]) -> list[failures.Failure]:
        """The ranks of nodes that are silent because they are gone."""
        silent = set(range(len(self.parts))) - self.reported
        gone = set()
        if silent and state[1]:
            gone = set(self.scheduler.lost_nodes(self.record.job, state[1]))
        # The end of a job makes all its nodes silent.
        quiet = set() if state[0] in self.scheduler.OVER else self._silent(QUIET)
        if len(quiet) == len(self.parts):
            quiet = set()
        lost = []
        for node in sorted(silent):
            name = self.names.get(node, f"node {node}")
            alone = state[0] == "NODE_FAIL" and len(silent) == 1
            if name not in gone and node not in quiet and not alone:
                continue
            for index in self.parts[node]:
                lost.append(failures.Failure(index, f"was lost with its node, {name}"))
        return lost

    def _of_lost(self, lost: list[failures.Failure]) -> dict[str, list[int]]:
        """{name of a node: its ranks}."""
        nodes: dict[str, list[int]] = {}
        for failure in lost:
            node = next(k for k, part in enumerate(self.parts) if failure.rank in part)
            nodes.setdefault(self.names.get(node, f"{node}"), []).append(failure.rank)
        return nodes

    def _silent(self, seconds: float) -> set[int]:
        """Nodes that gave signs of life, and for so long none."""
        now = time.monotonic()
        return {
            node
            for node, sign in self.beats.items()
            if node not in self.reported and now - sign >= seconds
        }

    def _patience_for_echo(self) -> float:
        """How long to wait, beyond the echo's time, for nodes that have not said what they saw.

        Where ranks only say that their connections have ended, the cause lies with a node that has not spoken yet: its
        agent will, or its silence will show.
        """
        unheard = set(self.beats) - self.reported - self._silent(QUIET)
        return (
            SLOW
            if unheard
            and self.failed
            and all(echo for echo, _, _ in (f.order for f in self.failed))
            else 0.0
        )

    def _never_began(self, state: str) -> JobFailed:
        if state in ("CANCELLED", "TIMEOUT", "PREEMPTED", "GONE", "NODE_FAIL"):
            return self._broken(
                f"{self.scheduler.describe(state, self.settings, self.record.job)}, before any of its nodes began"
            )
        log = self.transport.wrote()
        advice = self.scheduler.missing(self.settings, self.folder, log)
        if log:
            return self._broken(f"ended before it began the function{log}{advice}")
        return self._broken(f"ended before it began, and its nodes have written nothing{advice}")

    def _broken(self, how: str) -> JobFailed:
        return JobFailed(f"job {self.record.job} {how}", self.record.job, str(self.folder))
