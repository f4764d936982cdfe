"""Who hears of a message: the emulated network that slows it, the counters, the timeline, and whoever asks to.

A channel asks for them once, and again only when one has come or gone (events.changes): none of them is asked for at
each message, and a message that nobody hears of passes none.

    class Kinds(Observer):
        def posted(self, message):
            print(message.kind)                # "send" or "recv"

    with observing(Kinds()): ...               # of all messages of this process that are posted inside

Of collectives it hears where torch's own groups are recorded (launch(record=True)); what gloo sends in them it does not
hear of, and ours are messages.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from dtcourse import events
from dtcourse.collectives import traffic
from dtcourse.collectives.wire.message import Message
from dtcourse.emulation import clock
from dtcourse.emulation.clock import Clock
from dtcourse.emulation.network import EmulatedNetwork
from dtcourse.torch_private import is_fake

PICTURED = 64  # elements up to which a recorded message keeps its values, for pictures (profiling/replay.py)
_HEADER = 0x48  # goes into the tag of the note that precedes a message on an emulated network


class Observer:
    """Hears of messages, and of collectives. What it has no use for it leaves as it is here."""

    def begins(self, message: Message) -> None:
        """A message is about to be posted. What is raised here refuses it."""

    def posted(self, message: Message) -> None:
        """It is on its way."""

    def over(self, message: Message) -> None:
        """It has left or come. Called in whichever thread was the first to need it."""

    def waited(self, message: Message, since: float) -> None:
        """Its wait(), called at `since`, returns."""

    def found(self, message: Message) -> None:
        """Its is_completed() says yes."""

    def called(self, name: str, blocking: bool) -> None:
        """A collective of one of torch's own groups is called; blocking: its caller waits for it at once."""

    def waits(self, name: str) -> None:
        """A collective's wait() is called."""


class Emulated(Observer):
    """The emulated network: a message is over when it would be over there.

    A note travels beside it: when its head arrives, and how long it is, since it may be shorter than where it is
    received. The note belongs to the emulation: it is not counted, nor is what makes it.
    """

    def __init__(self, emulated: Clock) -> None:
        self.clock = emulated

    def begins(self, message: Message) -> None:
        message.ports = self.clock.ports() if message.channel.carries_notes else None
        if message.peer is None and not self.clock.arrival_decides:
            raise ValueError(
                "a receive from any rank takes what arrives first, and the virtual clock does not know what that is: "
                'launch(..., clock="wall")'
            )

    def posted(self, message: Message) -> None:
        if message.ports is None:
            return
        message.note = torch.empty(2, dtype=torch.float64)
        if message.kind == "send":
            nbytes, dst = message.nbytes, message.peer_everywhere
            message.due, head = message.ports.send(nbytes, dst, message.begun)
            message.note.numpy()[:] = head, nbytes
        if message.peer is not None:  # else posted when it is known who sends
            message.works.append(self._post_note(message))

    def over(self, message: Message) -> None:
        if message.ports is None or message.kind == "send":
            return
        if len(message.works) == 1:
            self._post_note(message).wait()
        head, nbytes = message.note.numpy()
        message.due = message.ports.receive(int(nbytes), message.peer_everywhere, float(head))

    def waited(self, message: Message, since: float) -> None:
        if message.ports is not None:
            clock.wait_until(message.due, since)

    @staticmethod
    def _post_note(message: Message) -> Any:
        tag = hash((_HEADER, message.wire)) & 0x3FFFFFFF
        return message.channel.post(message.kind, message.note, message.peer, tag)


class Counted(Observer):
    """The counters of traffic. A send is counted when it is posted; a receive when it has come, since it may never.

    Both by those who counted when it was posted.
    """

    def posted(self, message: Message) -> None:
        message.counters = traffic.active()
        if message.kind == "send":
            peer, axis = message.peer_everywhere, message.channel.axis
            traffic.sent(message.label, peer, message.nbytes, axis)

    def over(self, message: Message) -> None:
        if message.kind == "recv":
            peer, axis = message.peer_everywhere, message.channel.axis
            traffic.received(message.label, peer, message.nbytes, axis, message.counters)


class OnTheTimeline(Observer):
    """A message is an event, and says for pictures which part of which operation it was."""

    def posted(self, message: Message) -> None:
        # What a send carries is what the tensor holds now: it may change as soon as the message has left.
        known = not is_fake(type(message.tensor))
        if message.kind == "send" and known and message.tensor.numel() <= PICTURED:
            message.values = message.tensor.tolist()

    @staticmethod
    def _is_emulated(message: Message) -> bool:
        """Whether it takes the time of an emulated network: without one, on the wall clock, it takes its real time."""
        installed = clock.installed()
        if message.ports is None or installed is None:
            return False
        return not installed.arrival_decides or message.ports.network != EmulatedNetwork()

    def waited(self, message: Message, since: float) -> None:
        # When it had left or arrived: now, or before now where nobody waited for it at once.
        ended = max(message.begun, message.due) if self._is_emulated(message) else events.now()
        axis = message.channel.axis
        events.add(
            message.kind,
            "communication",
            message.begun,
            ended,
            bytes=message.nbytes,
            lane="messages",
            detail={
                "operation": message.label.operation,
                "phase": message.label.phase,
                "peer": message.peer_everywhere,
                "tag": message.tag,
                "offset": message.tensor.storage_offset(),  # in elements
                "elements": message.tensor.numel(),
                **({} if message.values is None else {"values": message.values}),
                **({"axis": axis} if axis else {}),
                "since": since,
            },
        )


present: tuple[Observer, ...] = ()  # those that have asked to hear
_guard = threading.Lock()


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """An observer hears of this process's messages and collectives, in all threads, while the block runs."""
    global present
    with _guard:
        present = (*present, observer)
    events.changed()
    try:
        yield
    finally:
        with _guard:
            left = list(present)
            left.remove(observer)  # once, where it has asked twice
            present = tuple(left)
        events.changed()


def of_messages() -> tuple[Observer, ...]:
    """All that hear of a message now, in the order in which they do."""
    emulated = clock.installed()
    return (
        *([Emulated(emulated)] if emulated is not None else []),
        *([Counted()] if traffic.active() else []),
        *([OnTheTimeline()] if events.recording() else []),
        *present,
    )
