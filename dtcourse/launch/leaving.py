"""The end of a launch whose ranks have all answered: each takes down its group and leaves, or stays for another one."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

from dtcourse.launch import rank, serialization
from dtcourse.launch.member import Member
from dtcourse.launch.output import Output

LIMIT = 5.0  # seconds


def release(members: list[Member], output: Output, again: bool) -> tuple[set[int], set[int]]:
    """Lets every rank go; reads what it still prints. Returns the places of those that stay, and of those that have
    answered once more.

    again: whether they may stay, and so whether anybody reads what else they say
    """
    for member in members:
        with suppress(OSError):
            member.channel.send_bytes(rank.AGAIN if again else rank.LEAVE)
    kept, twice, there = set[int](), set[int](), set(range(len(members)))
    ends: dict[Any, int] = {member.process.sentinel: place for place, member in enumerate(members)}
    words: dict[Any, int] = {one.channel: place for place, one in enumerate(members) if again}
    limit = time.monotonic() + LIMIT
    while there and (left := limit - time.monotonic()) > 0:
        for item in wait([*ends, *words, *output.open_pipes], left):
            if item in words:
                place = words.pop(item)
                word = _word(members[place])
                if word in ("message", "progress"):
                    words[item] = place  # of a thread, or late: it may stay all the same
                    continue
                if word == "again":  # it has printed all that it will
                    output.let_go(members[place].output)
                    kept.add(place)
                elif word in ("result", "failure"):
                    twice.add(place)
                if word or place not in ends.values():
                    there.discard(place)
            elif item in ends:
                place = ends.pop(item)
                # a rank that stays can write there, too
                if place not in words.values() or not _lives(members[place].pid):
                    there.discard(place)
            elif item in output.open_pipes:
                output.read(item)  # type: ignore[arg-type]
    return kept, twice


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
