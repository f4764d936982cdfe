"""What runs on a node: one agent, which imports torch once and splits off that node's ranks.

One task of the scheduler a node, not one a rank: the import of torch is most of what a start costs, and ranks that are
split off share it. The agents of a job find each other through the job's folder, then through a store that node 0
serves on the cluster's network; the ranks meet in the same store.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dtcourse.launch import environment, serialization, server
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster import ends
from dtcourse.launch.cluster.call import Call, Hold
from dtcourse.launch.cluster.ends import Ends
from dtcourse.launch.cluster.folder import Reader, Writer, require_private
from dtcourse.launch.cluster.node_ranks import NodeRanks, NodeTimeout
from dtcourse.launch.cluster.rendezvous import Ended, NodeRendezvous
from dtcourse.launch.cluster.station import Station
from dtcourse.launch.failures import Failure, RankFailure
from dtcourse.launch.interrupts import Interrupts

ECHO = 3.0  # seconds in which the other nodes may still say what they saw of a failure


def run(folder: Path, station: Station, started: Callable[[], None] = lambda: None) -> None:
    """One agent's part of a job. Leaves with exit code 1 where a rank failed, so that Slurm ends the other nodes'.

    started: called as soon as this process may have more than one thread
    """
    node = begin(folder, station)
    call, serialized = node.read_call(folder)
    node.settle(call)
    server.start_within()  # imports torch here, and the ranks' server is a copy of this process
    started()
    node.watch.start()
    node.log.write((words.BEATS, words.BEAT))
    with (
        node.log.beating(words.BEAT),
        NodeRendezvous(folder, station, call) as rendezvous,
    ):
        node.watch.together = partial(rendezvous.barrier_of_thread, "ended")
        if node.take(call, serialized, rendezvous, node.log):
            rendezvous.leave()
            return
        with suppress(Exception):
            rendezvous.barrier("over", ECHO)
    sys.exit(1)


class Node:
    """This node's part of a job.

    log:      what it says
    watch:    what may end it, as soon as `settle` has made it
    own_path: sys.path of this Python
    """

    def __init__(self, folder: Path, station: Station) -> None:
        self.folder, self.station = folder, station
        self.number, self.name = station.number, station.node
        self.log = self.log_in(folder)
        self.own_path = list(sys.path)

    def log_in(self, folder: Path) -> Writer:
        """Begins this node's log in the folder of a job, or of a call."""
        log = Writer(folder / words.log_name(self.number))
        log.write((words.HERE, {"node": self.name, "attempt": self.station.attempt}))
        return log

    @staticmethod
    def read_call(folder: Path) -> tuple[Call, serialization.Serialized]:
        """The call that lies in a folder."""
        call, (stream, buffers) = (unpack() for unpack in Reader(folder / words.CALL).new())
        return call, (stream, [memoryview(buffer) for buffer in buffers])

    def settle(self, call: Call | Hold) -> None:
        """Becomes what the notebook is, as far as a node can; refuses where it cannot."""
        sentence = words.difference(
            call.versions, words.versions(), self.name, call.shares
        ) or self.lacks(call)
        if sentence is not None:
            self.log.write((words.REFUSED, sentence))
            sys.exit(1)
        requeue = ends.hold(call.warning[0])
        self.go_to(call)
        silence = f"the notebook that launched it gave no sign of life for {call.patience or 0:g} s"
        self.watch = Ends(
            self.folder,
            call.warning,
            requeue if call.requeued else None,
            call.patience,
            partial(self.log.write, (words.REFUSED, f"was ended: {silence}")),
        )

    def lacks(self, call: Call | Hold) -> str | None:
        """What the notebook has and this node has not, in a sentence."""
        if not call.shares or os.path.isdir(call.directory):
            return None
        return (
            f"node {self.name} has no folder {call.directory}, in which the notebook runs: work in a folder that all "
            "nodes share"
        )

    def go_to(self, call: Call | Hold) -> None:
        """Takes the notebook's directory and sys.path."""
        # A rank whose machine shares nothing with the notebook's works in its job's own folder.
        has_it = call.shares or os.path.isdir(call.directory)
        os.chdir(call.directory if has_it else self.folder)
        # The notebook's, and then this Python's own: a container has its packages elsewhere.
        sys.path[:] = dict.fromkeys([*call.path, *self.own_path])

    def take(
        self,
        call: Call,
        serialized: serialization.Serialized,
        rendezvous: NodeRendezvous,
        log: Writer,
        around: Callable[[int, Interrupts], AbstractContextManager[None]] | None = None,
    ) -> bool:
        """Runs this node's ranks, and says in the log what became of them. False where one failed."""
        try:
            answers = _answers(call, serialized, self.number, rendezvous, log, self.watch, around)
        except NodeTimeout as error:
            log.write((words.TIMEOUT, error.args))
        except RankFailure as error:
            self.watch.wait_if_asked()
            if rendezvous.is_over():
                return False  # they were ended
            log.write((words.FAILED, _by_the_walls_clock(error.failures)))
        except Ended:
            pass
        else:
            if any(isinstance(answer, RankFailure) for answer in answers.values()):
                self.watch.wait_if_asked()
            offset = time.time() - time.monotonic()
            log.write((words.RESULTS, {"answers": answers, "offset": offset}))
            return True
        return False


def begin(folder: Path, station: Station) -> Node:
    """Looks at the folder before anything in it is read."""
    # Until there are ranks, whose end it is then (ends.py).
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    require_private(folder)
    return Node(folder, station)


def _answers(
    call: Call,
    serialized: serialization.Serialized,
    node: int,
    rendezvous: NodeRendezvous,
    log: Writer,
    watch: Ends,
    around: Callable[[int, Interrupts], AbstractContextManager[None]] | None,
) -> dict[int, Any]:
    """{rank: answer} of this node's ranks. around: entered for as long as they run."""
    layout, asked = call.layout, call.asked
    mine = call.parts[node]
    base = {
        **words.changed(dict(os.environ), call.changes),
        **dict.fromkeys(environment.INTERFACES, rendezvous.interface),
        **asked.environment,
    }
    settings = [
        asked.of(
            index,
            {
                **base,
                **environment.of_rank(
                    layout, index, index - mine.start, rendezvous.address, rendezvous.port
                ),
            },
            f"tcp://{rendezvous.address}:{rendezvous.port}",
        )
        for index in mine
    ]
    with (
        closing(serialization.Payload(serialized)) as payload,
        Interrupts() as interrupts,
        around(len(mine), interrupts) if around else nullcontext(),
        watch.over(
            NodeRanks(settings, payload, asked.together, interrupts, rendezvous, log, watch)
        ) as ranks,
    ):
        return dict(zip(mine, ranks.answers(asked.timeout), strict=True))


def _by_the_walls_clock(failed: list[Failure]) -> list[Failure]:
    """With times that can be compared with another node's: monotonic clocks start with their machines."""
    offset = time.time() - time.monotonic()
    return [replace(failure, when=failure.when + offset) for failure in failed]
