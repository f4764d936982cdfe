"""The end of a launch whose ranks have all answered: each takes down its group and leaves, or stays for another one.

What answered may have been the function itself, by a way that it found. So where ranks may stay (again.py) each
confirms that it was let go, which is the rank's next step once its function has returned.

This finds out who says a result and no more: nothing that one process says can prove that the function has returned,
since the function is in that process, and whoever found the way for a result may say this word on it, too. So it is no
wall. What is told of a rank by others (that it has ended, and how) it cannot say itself.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from dtcourse.launch import failures, rank, serialization
from dtcourse.launch.member import Member
from dtcourse.launch.output import Output

TWICE = "answered twice, and only one of the answers is what its function returned"
EARLY = "answered before its function had returned"
LIMIT = 5.0  # seconds
PATIENCE = 30.0  # seconds for the last word, which costs a rank nothing: a busy machine may not be taken for a liar


def release(members: list[Member], output: Output, again: bool) -> tuple[set[int], dict[int, str]]:
    """Lets every rank go; reads what it still prints. Returns the places of those that stay, and what is wrong with the
    answers of others.

    again: whether they may stay, and so whether anybody reads what else they say
    """
    for member in members:
        with suppress(OSError):
            member.channel.send_bytes(rank.AGAIN if again else rank.LEAVE)
    parting = _Parting(members, output, again)
    begun = time.monotonic()
    while parting.there:
        limit = PATIENCE if parting.silent & parting.there else LIMIT
        if (left := begun + limit - time.monotonic()) <= 0:
            break
        parting.step(left)
    silent = {place: _why_silent(members[place]) for place in parting.silent}
    return parting.kept, parting.wrong | silent


class _Parting:
    """there: the places of those that are not through; silent: those that have not had their last word."""

    def __init__(self, members: list[Member], output: Output, again: bool) -> None:
        self.members, self.output = members, output
        places = range(len(members))
        self.there, self.kept, self.wrong = set(places), set[int](), dict[int, str]()
        self.silent = set(places) if again else set[int]()
        self._ends: dict[Any, int] = {members[place].process.sentinel: place for place in places}
        self._words: dict[Any, int] = {members[p].channel: p for p in places if again}

    def step(self, seconds: float) -> None:
        """Handles what has happened by now, or the first thing that happens within `seconds`."""
        for item in wait([*self._ends, *self._words, *self.output.open_pipes], seconds):
            if item in self._words:
                self._on_word(self._words[item])
            elif item in self._ends:
                place = self._ends.pop(item)
                # a rank that stays can write there, too
                if self._speaks(place) and _lives(self.members[place].pid):
                    continue
                with suppress(OSError):
                    while self._speaks(place) and self.members[place].channel.poll():
                        self._on_word(place)  # before it ended
                self.there.discard(place)
            elif item in self.output.open_pipes:
                self.output.read(item)  # type: ignore[arg-type]

    def _speaks(self, place: int) -> bool:
        return place in self._words.values()

    def _on_word(self, place: int) -> None:
        word = _word(self.members[place])
        if word == "hears":
            self.silent.discard(place)
        # a message comes of a thread, or late: it may stay all the same
        if word in ("hears", "message", "progress"):
            return
        del self._words[self.members[place].channel]
        if word == "again":  # it has printed all that it will
            self.output.let_go(self.members[place].output)
            self.kept.add(place)
        elif word in ("result", "failure"):
            self.silent.discard(place)
            self.wrong[place] = TWICE
        if word or place not in self._ends.values():
            self.there.discard(place)


def _why_silent(member: Member) -> str:
    code = None if member.process.is_untold() else member.process.exitcode
    return EARLY if code is None or code >= 0 else failures.exit_summary(code)


def _word(member: Member) -> str:
    with suppress(Exception):  # what a rank writes there may be anything
        kind, _ = serialization.receive(member.channel)()
        return str(kind)
    return ""


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
