"""The notebook's side of a job: what it is told, until all ranks have answered or the job is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dtcourse.launch import failures, options, waiting
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster import scheduler as schedulers
from dtcourse.launch.cluster.ending import QUIET, Ending
from dtcourse.launch.cluster.record import Record
from dtcourse.launch.cluster.settings import Settings
from dtcourse.launch.interrupts import Stop
from dtcourse.launch.reporting import Bars
from dtcourse.plural import plural

LOOK = 0.05  # seconds between two looks into the logs, at first; later half a second
ASK = 1.0  # seconds between two questions to the scheduler, at first; later ten
ECHO = 4.0  # seconds in which the other nodes may still say what they saw of a failure
PATIENCE = 10.0  # seconds of waiting that a script's output says nothing of
SILENT = 60.0  # without any, where other nodes give signs: it is gone
LATE = 5.0  # seconds that what a job's nodes wrote may need to arrive, after the job is over


class Job(Ending):
    """One job that has been submitted. `answers()` follows it to its end."""

    def __init__(
        self,
        folder: Path,
        record: Record,
        settings: Settings,
        on_line: Callable[[int, str], None] | None = None,
        on_message: Callable[[int, Any], None] | None = None,
    ) -> None:
        self.folder, self.record, self.settings = folder, record, settings
        self.layout = options.Layout(**record.layout)
        self.scheduler = schedulers.of(settings)
        self.parts = words.parts(self.layout)
        self.transport = self.scheduler.transport(folder, record.job, len(self.parts))
        self.on_line, self.on_message = on_line, on_message
        self.bars = Bars()
        self.look = LOOK
        self.stop: Stop | None = None  # by which another thread may end it
        self.attempts: dict[int, int] = {}  # by node: how often the job had been restarted
        self.newest = 0  # how often, as far as any node has said
        self.gone = False  # a node of it was lost
        self.reason = self.told = ""  # why it waits, as was said last; as was told last
        self._begin_again()

    def _begin_again(self) -> None:
        """As before the first node has said anything; also where the job was started once more."""
        self.lines: list[list[str]] = [[] for _ in range(self.layout.world_size)]
        self.names: dict[int, str] = {}  # of the nodes whose agents run
        self.beats: dict[
            int, float
        ] = {}  # by node: when it gave its last sign of life, by our clock
        self.signs: dict[int, tuple[int, int]] = {}
        self.results: dict[int, Any] = {}
        self.answered: set[int] = set()  # ranks that have, and wait for those of other nodes
        self.reported: set[int] = set()  # nodes that have said how their part ended
        self.refusal: str | None = None
        self.failed: list[failures.Failure] = []
        self.timeouts: list[tuple[float, set[int], dict[int, str]]] = []

    def answers(self) -> list[Any]:
        """What each rank answered: as Ranks.answers. Raises RankFailure, RankTimeout or JobFailed.

        Ctrl-C cancels the job, and waits until it has left its nodes.
        """
        try:
            with waiting.saying(
                f"job {self.record.job} waits for {plural(self.layout.nodes, 'node')}"
            ):
                self._follow(lambda: bool(self.names))
            self._follow(lambda: False)
            return [self.results[index] for index in range(self.layout.world_size)]
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(self._was_interrupted())
            raise interrupt.with_traceback(None) from None
        finally:
            self.bars.close()
            if len(self.results) < self.layout.world_size:
                self.end(wait=not self.gone)  # a node that is gone is never left

    def _was_interrupted(self) -> str:
        return f"job {self.record.job} was cancelled"

    def _follow(self, enough: Callable[[], bool]) -> None:
        """Reads the logs until all ranks have answered or `enough()`; raises what has gone wrong."""
        began = asked = time.monotonic()
        look, ask, echo, over = self.look, ASK, None, None
        state = ("PENDING", "", "")
        while True:
            if self.read():
                look = self.look
            if self.stop is not None and self.stop.is_pressed():
                raise KeyboardInterrupt
            if len(self.results) == self.layout.world_size or enough():
                return
            now = time.monotonic()
            if self.refusal is not None:
                raise self._broken(self.refusal)
            if echo is None and (self.failed or self.timeouts):
                echo = now + ECHO
            if over is not None and now >= over:
                self._raise(state)
            if echo is not None and (
                len(self.reported) == len(self.parts) or now >= echo + self._patience_for_echo()
            ):
                self._raise(state)
            if self._silent(SILENT) and len(self._silent(QUIET)) < len(self.beats):
                self._raise(state)
            if over is None and now - asked >= ask:
                asked, ask = now, min(ask * 1.3, 10.0)
                state = self.state()
                if state[0] in self.scheduler.OVER:
                    over = now + LATE if self.names else now
                    continue
                if self.names == {} and state[0] == "PENDING":
                    self._require_patience(now - began, state[2])
            time.sleep(look)
            look = min(look * 1.1, 0.5)

    def state(self) -> tuple[str, str, str]:
        """What the scheduler says of it now: (state, its nodes, why it waits)."""
        return self.scheduler.state_of(self.record.job, self.record.comment)

    def _require_patience(self, waited: float, reason: str) -> None:
        # Twice the same: a scheduler's first look at a job may give another reason than its second.
        hopeless = reason == self.reason and self.scheduler.never_starts(
            self.record.job, self.layout.nodes, reason
        )
        self.reason = reason
        if hopeless:
            raise self._broken(
                f"can never start, and was cancelled: {hopeless} ({self.scheduler.NAME}'s reason: {reason})"
            )
        if waited > PATIENCE and reason != self.told:
            self.told = reason
            waiting.tell(
                f"job {self.record.job} waits for {plural(self.layout.nodes, 'node')} "
                f"({self.scheduler.NAME}'s reason: {reason})"
            )
        limit = self.settings.wait_minutes
        if limit is not None and waited > limit * 60:
            raise self._broken(
                f"waited for more than {limit:g} minutes in the queue ({reason}), and was cancelled (`wait_minutes` "
                "in cluster.toml)"
            )

    def read(self) -> bool:
        """Takes what the nodes have said since the last time; says whether there was anything."""
        heard = []
        self.transport.advance()
        for node, log in enumerate(self.transport.logs):
            for deserialize in log.new():
                try:
                    heard.append((node, *deserialize()))
                except Exception as error:
                    raise self._broken(
                        f"sent something that cannot be rebuilt in the notebook: {error!r}"
                    ) from error
        # Where a job was started again, its earlier tries are not shown, whichever node's log is read first.
        tries = [content["attempt"] for _, word, content in heard if word == words.HERE]
        if max(tries, default=0) > self.newest:
            self.newest = max(tries)
            self._begin_again()
        for node, word, content in heard:
            self._on_message(node, word, content)
        for node, log in enumerate(self.transport.logs):
            if node in self.beats and log.sign != self.signs.get(node):
                self.signs[node], self.beats[node] = log.sign, time.monotonic()
        return bool(heard)

    def _on_message(self, node: int, word: str, content: Any) -> None:
        if word == words.HERE:
            self.attempts[node] = content["attempt"]
            if content["attempt"] == self.newest:
                self.names[node] = content["node"]
        elif self.attempts.get(node, 0) < self.newest:
            return  # what is left of a try that was ended
        elif word == words.LINE:
            index, line = content
            self.lines[index].append(line)
            if self.on_line is not None:
                self.on_line(index, line)
        elif word == words.MESSAGE:
            if self.on_message is not None:
                self.on_message(*content)
        elif word == words.PROGRESS:
            self.bars.update(*content)
        elif word == words.RESULTS:
            # Each machine counts its own clock from its own start: events come onto the notebook's.
            offset = content["offset"] - (time.time() - time.monotonic())
            for index, answer in content["answers"].items():
                self.results[index] = words.shifted(answer, offset)
            self.reported.add(node)
        elif word == words.ANSWERED:
            self.answered.update(content)
        elif word == words.BEATS:
            self.beats[node] = time.monotonic()
        elif word == words.REFUSED:
            self.refusal = content
        elif word == words.FAILED:
            self.failed += content
            self.reported.add(node)
        elif word == words.TIMEOUT:
            self.timeouts.append(content)
            self.reported.add(node)

    def end(self, wait: bool = True) -> None:
        """Cancels the job where it still runs, and waits until it has left its nodes."""
        if not wait:
            self.scheduler.cancel(self.record.job)
            return
        deadline, cancelled = time.monotonic() + 60.0, 0.0
        while time.monotonic() < deadline:
            state, _, _ = self.state()
            if state in self.scheduler.OVER:
                return
            if state != "COMPLETING" and time.monotonic() - cancelled > 5.0:
                self.scheduler.cancel(self.record.job)
                cancelled = time.monotonic()
            time.sleep(0.1)
