"""The processes of one launch: started, watched, and gone in the end.

One loop waits for everything that can happen: an answer, a printed line, a process that went away, the time limit,
Ctrl-C. Whatever ends it, every rank's process group is killed before launch returns or raises.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from dtcourse.launch import (
    deadlock,
    deaths,
    failures,
    leaving,
    rank,
    serialization,
    standby,
    waiting,
)
from dtcourse.launch.interrupts import Interrupts
from dtcourse.launch.output import Output, what_waits
from dtcourse.launch.rank_process import RankProcess
from dtcourse.launch.recording import wait_for_records
from dtcourse.launch.reporting import Bars

GRACE = 0.25  # seconds in which other ranks may still fail by themselves after the first failure


class Ranks:
    """The processes of one launch, from start to end. Leaving the `with` block kills what is left of them."""

    def __init__(
        self,
        settings: list[rank.Settings],
        payload: serialization.Payload,
        on_line: Callable[[int, str], None] | None,
        on_message: Callable[[int, Any], None] | None,
        goes_on: bool,
        interrupts: Interrupts,
    ) -> None:
        self.settings, self.payload, self.interrupts = settings, payload, interrupts
        self.goes_on = goes_on  # after a failure, with the other ranks
        self.world_size = len(settings)  # of those that we start: on a cluster, one node's
        self.first, self.of = settings[0].rank, int(settings[0].environment["WORLD_SIZE"])
        self.members: list[standby.Member] = []
        self.kept: set[int] = set()  # ranks whose processes stay for another launch
        self.on_message, self.on_line, self.output = on_message, on_line, Output([])
        self.begun: set[int] = set()  # ranks that have begun the function
        self.results: dict[int, dict[str, Any]] = {}
        self.failures: dict[int, failures.Failure] = {}
        self.untold: set[int] = set()  # ranks of whose end nobody but themselves will tell
        self.lost: dict[int, failures.RankFailure] = {}  # what stands for a result, where we go on
        self.bars = Bars()
        self.watch = deadlock.watch()

    def __enter__(self) -> Ranks:
        try:
            with waiting.saying("starting the ranks; the first time, their server imports PyTorch"):
                self.members = standby.members(self.world_size)
            self.output = Output([member.output for member in self.members], self.on_line)
            # All processes exist before the first function is sent: their start-ups overlap.
            for channel, settings in zip(self.channels, self.settings, strict=True):
                with suppress(BrokenPipeError, ConnectionResetError):  # it died; the loop says how
                    serialization.send(channel, settings)
                    self.payload.send(channel)
        except BaseException:  # leaving `with` is not for a block that was never entered
            self.__exit__()
            raise
        return self

    @property
    def channels(self) -> list[Connection]:
        """By rank: over which it hears and answers."""
        return [member.channel for member in self.members]

    @property
    def processes(self) -> list[RankProcess]:
        """By rank."""
        return [member.process for member in self.members]

    def answers(self, limit: float | None) -> list[dict[str, Any] | failures.RankFailure]:
        """Waits until all ranks have answered; raises where one did not within `limit` seconds of the function.

        Where `goes_on`, a RankFailure takes the place of the answer instead.
        """
        deadline = None if limit is None else time.monotonic() + rank.START + limit
        counting = False
        grace: float | None = None
        try:
            while len(self.results) + len(self.failures) < self.world_size:
                now = time.monotonic()
                begun = len(self.begun | self.failures.keys()) == self.world_size
                if begun and not counting:
                    counting, deadline = True, None if limit is None else now + limit
                    if self.goes_on:
                        self._say_go()
                if grace is not None and now >= grace:
                    if not self._may_go_on():
                        break
                    grace = now + GRACE
                if deadline is not None and now >= deadline and grace is None:
                    given = (limit or 0.0) + (0.0 if counting else rank.START)
                    if self.goes_on:
                        self._give_up(given, self._dump_stacks())
                        break
                    raise self._timed_out(given, self._dump_stacks())
                if counting and limit and grace is None and (stacks := self._deadlocked()):
                    if self.goes_on:
                        self._give_up(limit, stacks)
                        break
                    raise self._timed_out(limit, stacks)
                look = now + deadlock.LOOK if self.watch else None
                ends = [t for t in (grace, deadline, look) if t is not None]
                # An hour at most: the system's own wait cannot count for ever.
                self._step(min(max(0.0, min(ends) - now), 3600.0) if ends else None)
                if self.failures and grace is None and not self.goes_on:
                    grace = time.monotonic() + GRACE
        except KeyboardInterrupt as interrupt:
            for index, stack in self._dump_stacks().items():
                interrupt.add_note(f"rank {index} {failures.readable(failures.where(stack))}")
            # it says where the ranks were, not where we were
            raise interrupt.with_traceback(None) from None
        if self.goes_on or not self.failures:
            self._release()
        if self.failures and not self.goes_on:
            failure = failures.rank_failure(list(self.failures.values()), self.world_size)
            raise failure from failure.failures[0].exception
        return [self.results.get(r) or self.lost[r] for r in range(self.world_size)]

    def _may_go_on(self) -> bool:
        """Whether the other ranks may go on although one has failed and its grace is over."""
        return False

    def _timed_out(self, limit: float, stacks: dict[int, str]) -> Exception:
        """What to raise at the time limit."""
        return failures.rank_timeout(limit, set(self.results), stacks, self.world_size)

    def _say_go(self) -> None:
        """To all ranks that wait to begin the function together."""
        for index in self.begun:
            with suppress(OSError):  # it died meanwhile; the loop says how
                self.channels[index].send_bytes(rank.GO)

    def _deadlocked(self) -> dict[int, str]:
        """The stacks of all ranks, where they are watched and wait for each other for ever; else none."""
        still = self.watch.still([member.pid for member in self.members]) if self.watch else None
        if self.watch is None or still is None:
            return {}
        stacks = self._dump_stacks()
        if deadlock.all_wait(stacks, still):
            return stacks
        self.watch.begin_again()
        return {}

    def _step(self, seconds: float | None) -> None:
        """Handles what has happened by now, or the first thing that happens within `seconds`."""
        pending = [r for r in range(self.world_size) if r not in self.results | self.failures]
        channels = {self.channels[r]: r for r in pending}
        sentinels = {self.processes[r].sentinel: r for r in pending if r not in self.untold}
        stops = [self.interrupts.stop.pipe()] if self.interrupts.stop else []
        ready = wait([*channels, *self.output.open_pipes, *sentinels, *stops], seconds)
        gone = []
        for item in ready:
            if item in stops:
                raise KeyboardInterrupt
            if item in channels:
                self._on_message(channels[item])
            elif item in sentinels:
                gone.append(sentinels[item])
            else:
                self.output.read(item)  # type: ignore[arg-type]
        for index in gone:
            if self.processes[index].is_untold():
                self.untold.add(index)  # its channel will end where it does
            else:
                self._on_exit(index)

    def _on_message(self, index: int) -> None:
        """Takes one message of a rank."""
        try:
            deserialize = serialization.receive(self.channels[index])
        except (EOFError, OSError):
            return self._on_exit(index)
        return self._store_answer(index, deserialize)

    def _store_answer(self, index: int, deserialize: Callable[[], Any]) -> None:
        try:
            kind, content = deserialize()
        except Exception as error:  # it arrived, and cannot be rebuilt here
            summary = f"returned something that cannot be rebuilt in the notebook: {error!r}"
            kind, content = "failure", {"summary": summary, "when": time.monotonic()}
        if kind == "result":
            self.results[index] = content
        elif kind == "failure":
            self._fail(failures.Failure(self.first + index, **content))
        elif kind == "begun":
            self.begun.add(index)
        elif kind == "progress":
            self.bars.update(*content)
        elif kind == "message" and self.on_message is not None:
            self.on_message(self.first + index, content)

    def _on_exit(self, index: int) -> None:
        """A rank's process went away. What it said before that counts first."""
        with suppress(EOFError, OSError):
            while index not in self.results | self.failures and self.channels[index].poll():
                self._store_answer(index, serialization.receive(self.channels[index]))
        if index in self.results | self.failures:
            return
        process = self.processes[index]
        process.join(5)
        summary = failures.exit_summary(None if process.is_untold() else process.exitcode)
        details = what_waits(self.members[index].stacks)
        self._fail(failures.Failure(self.first + index, summary, details, time.monotonic()))

    def _fail(self, failure: failures.Failure) -> None:
        """Notes that a rank will not answer. Where we go on, it ends now, and the notebook hears of it."""
        index = failure.rank - self.first
        self.failures[index] = failure
        if self.goes_on:
            with suppress(OSError):  # the process may be gone already
                self.channels[index].send_bytes(rank.END)
            deaths.tell(self.settings[0].rendezvous, failure.rank, failure.summary)
            self._note_failure(failures.one_failure(failure, self.of))

    def _give_up(self, limit: float, stacks: dict[int, str]) -> None:
        """The time is over for the ranks that have not answered; those that have keep their results."""
        for index, stack in stacks.items():
            error = failures.one_timeout(limit, self.first + index, stack, self.of)
            self.failures[index] = error.failures[0]
            with suppress(ProcessLookupError):  # it went just now, by itself
                os.killpg(self.members[index].pid, signal.SIGKILL)
            self._note_failure(error)

    def _note_failure(self, error: failures.RankFailure) -> None:
        number = error.failures[0].rank
        self.lost[number - self.first] = error
        if self.on_message is not None:
            self.on_message(number, error)

    def _dump_stacks(self) -> dict[int, str]:
        """The stacks, at this moment, of all ranks that have not answered."""
        asked = [r for r in range(len(self.members)) if r not in self.results | self.failures]
        for index in asked:
            with suppress(ProcessLookupError):
                os.kill(self.members[index].pid, signal.SIGUSR1)
        # On a busy machine a rank comes to its signal handler late; then it takes a moment to write a page.
        silent, limit = {self.members[index].stacks for index in asked}, time.monotonic() + 5.0
        while silent and (left := limit - time.monotonic()) > 0:
            silent -= set(wait(silent, left))
        wait_for_records(self.settings[0].environment, [self.first + i for i in asked])
        return {index: what_waits(self.members[index].stacks) for index in asked}

    def _release(self) -> None:
        self.kept, wrong = leaving.release(self.members, self.output, self.settings[0].again)
        for index, summary in sorted(wrong.items()):  # the answer was not its function's
            self._fail(failures.Failure(self.first + index, summary))

    def __exit__(self, *_: object) -> None:
        self.interrupts.cleaning_up = True
        # The group, not only the process: data loaders' workers and whatever else a rank started go with it.
        ended = [member for r, member in enumerate(self.members) if r not in self.kept]
        for pid in [member.pid for member in ended]:
            for kill in (os.killpg, os.kill):  # in case it had no time to form a group
                with suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)
        for process in [member.process for member in ended]:
            process.join(10)
            # Killed it is; who tells of its end may get no processor for that long, where hundreds want one.
            with suppress(ValueError):
                process.close()
        deadline = time.monotonic() + 1.0
        while self.output.open_pipes and time.monotonic() < deadline:
            for pipe in wait(self.output.open_pipes, 0.1):
                self.output.read(pipe)  # type: ignore[arg-type]
        self.output.show()
        self.output.close()
        for member in ended:
            member.channel.close()
            member.stacks.close()
        for index in sorted(self.kept):
            standby.keep(self.members[index])
        self.bars.close()
