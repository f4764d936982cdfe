"""Which events of several ranks are one thing: a message's two ends, a collective's calls on all its ranks.

They are told by what the course's recorder notes of each (peer, tag, elements, bytes, mesh axis) and by their order:
messages of one kind between two ranks keep theirs, and so do a group's collectives. What has lost its other end, in a
recording that breaks off or lacks a rank, is left over and counted, never guessed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from dtcourse.events import Event, Timeline

COLLECTIVES, MESSAGES = "collectives", "messages"  # the lanes that the recorder lays them on


@dataclass(frozen=True)
class Message:
    """A send and its receive.

    left: when the sender's port was free for it: its post, or the end of the send before it
    """

    send: Event
    recv: Event
    left: float

    @property
    def pair(self) -> tuple[int, int]:
        """From rank to rank."""
        return self.send.rank, self.recv.rank

    @property
    def seconds(self) -> float:
        """What the link took for it, without the queue at the sender."""
        return self.recv.end - self.left


@dataclass
class Matched:
    """All of a timeline's messages and collectives.

    messages:    those of which both ends are there
    of_receive, of_send: by the id() of an event, its message
    collectives: by the id() of an event, the same collective's events on all ranks that have it
    alone:       how many messages and collectives lack an end that their event names
    """

    messages: list[Message] = field(default_factory=list)
    of_receive: dict[int, Message] = field(default_factory=dict)
    of_send: dict[int, Message] = field(default_factory=dict)
    collectives: dict[int, list[Event]] = field(default_factory=dict)
    alone: int = 0

    @classmethod
    def of(cls, timeline: Timeline) -> Matched:
        """Looks at every message and collective once."""
        found = cls()
        found._match_messages([e for e in timeline if e.lane == MESSAGES and "peer" in e.detail])
        found._match_collectives([e for e in timeline if e.lane == COLLECTIVES])
        return found

    def _match_messages(self, events: Iterable[Event]) -> None:
        sends: dict[Any, list[Event]] = defaultdict(list)
        receives: dict[Any, list[Event]] = defaultdict(list)
        by_sender: dict[int, list[Event]] = defaultdict(list)
        for event in events:
            detail = event.detail
            kind = detail.get("tag"), detail.get("elements"), detail.get("axis")
            if event.name == "send":
                sends[event.rank, detail["peer"], *kind].append(event)
                by_sender[event.rank].append(event)
            else:
                receives[detail["peer"], event.rank, *kind].append(event)
        before = {rank: _ends(of_rank) for rank, of_rank in by_sender.items()}
        for key in sends.keys() | receives.keys():
            # Posted at once, they are told apart by their ends: messages of one kind do not overtake one another.
            posted, came = (sorted(of[key], key=lambda e: e.end) for of in (sends, receives))
            self.alone += abs(len(posted) - len(came))
            for send, recv in zip(posted, came, strict=False):
                ends = before[send.rank]
                # The last send of this rank that had left before this one did: it held the port until then.
                place = bisect_right(ends, send.end - 1e-12) - 1
                left = max(send.start, ends[place]) if place >= 0 else send.start
                message = Message(send, recv, min(left, recv.end))
                self.messages.append(message)
                self.of_send[id(send)] = self.of_receive[id(recv)] = message

    def _match_collectives(self, events: Iterable[Event]) -> None:
        by_key: dict[Any, dict[int, list[Event]]] = defaultdict(lambda: defaultdict(list))
        for event in events:
            by_key[event.name, event.bytes, event.detail.get("axis")][event.rank].append(event)
        for of_ranks in by_key.values():
            longest = max(map(len, of_ranks.values()))
            for number in range(longest):
                same = [own[number] for own in of_ranks.values() if number < len(own)]
                self.alone += len(same) < len(of_ranks)
                self.collectives.update((id(one), same) for one in same)


def is_own_message(event: Event) -> bool:
    """Whether it was sent or received by the program itself, not by a collective."""
    return event.lane == MESSAGES and event.detail.get("operation") == event.name


def waits(timeline: Timeline) -> dict[int, list[tuple[float, float]]]:
    """By rank, when its main lane waited: its events of kind "wait", and its own messages from when it asked for them.

    Each list is in the order of the ends.
    """
    found: dict[int, list[tuple[float, float]]] = {rank: [] for rank in timeline.ranks}
    for event in timeline:
        if is_own_message(event):
            found[event.rank].append((event.detail.get("since", event.start), event.end))
        elif event.kind == "wait" and event.lane == "main":
            found[event.rank].append((event.start, event.end))
    return {rank: sorted(of_rank, key=lambda wait: wait[1]) for rank, of_rank in found.items()}


def _ends(events: Iterable[Event]) -> list[float]:
    return sorted(e.end for e in events)
