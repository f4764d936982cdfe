"""Whoever asks to hears of messages and collectives."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.collectives import p2p, traffic
from dtcourse.collectives.wire import observers
from dtcourse.collectives.wire.message import Message
from dtcourse.collectives.wire.observers import Counted, Observer, observing


class Heard(Observer):
    """Notes what it hears."""

    def __init__(self):
        self.words = []

    def begins(self, message):
        if message.tag == 13:
            raise ValueError("no message 13")
        self.words.append(f"begins {message.kind}")

    def posted(self, message):
        self.words.append(f"posted {message.label.operation}")

    def over(self, message):
        self.words.append(f"over {message.nbytes}")

    def waited(self, message, since):
        self.words.append(f"waited for {message.peer_everywhere}")

    def found(self, message):
        self.words.append("found")

    def called(self, name, blocking):
        self.words.append(f"{name} {blocking}")

    def waits(self, name):
        self.words.append(f"waits for {name}")


def _heard():
    other, x, y = 1 - p2p.rank(), torch.ones(2), torch.empty(2)
    p2p.exchange(x, other, y, other)  # before
    heard = Heard()
    with observing(heard):
        receiving = p2p.irecv(y, other)
        p2p.send(x, other)
        receiving.wait()
        assert receiving.is_completed()
        with pytest.raises(ValueError, match="no message 13"):
            p2p.send(x, other, tag=13)
        messages, heard.words = heard.words, []
        dist.all_reduce(x, async_op=True).wait()
        collectives, heard.words = heard.words, []
    p2p.exchange(x, other, y, other)  # afterwards
    dist.all_reduce(x)
    return messages, collectives, heard.words


@pytest.mark.parametrize("record", [False, True])
def test_an_observer_hears_of_messages_and_of_torchs_collectives_while_its_block_runs(record):
    for rank, (messages, collectives, afterwards) in enumerate(launch(_heard, 2, record=record)):
        waited = f"waited for {1 - rank}"
        assert messages == [
            *("begins recv", "posted recv", "begins send", "posted send"),
            *("over 8", waited, "over 8", waited, "found"),
        ]
        # torch's own groups are seen where they are recorded: gloo itself tells nobody
        assert collectives == (["all_reduce False", "waits for all_reduce"] if record else [])
        assert afterwards == []


def test_to_make_a_message_sends_nothing():
    nobody = object()  # has neither a transport nor observers
    message = Message(nobody, "send", torch.ones(2), 1, 0)
    assert message.works == [] and not message.number
    with pytest.raises(AttributeError):
        message.post(7)


class Carrier:
    """A channel whose messages are over as soon as they are posted, as on a GPU that is done."""

    guard, rank, axis, global_ranks = None, 0, "", (0, 1)

    def __init__(self, *observers):
        self.observers = observers

    def post(self, kind, tensor, peer, wire):
        return self

    def is_completed(self):
        return True

    def wait(self):
        return True


def test_a_message_that_is_polled_alone_is_over_for_those_who_hear():
    heard = Heard()
    message = Message(Carrier(heard), "recv", torch.ones(2), 1, 0).post(7)
    assert message.is_completed() and message.is_completed()
    assert heard.words == ["begins recv", "posted recv", "over 8", "found", "found"]


def test_a_receive_is_counted_by_those_who_counted_when_it_was_posted():
    channel = Carrier(Counted())
    with traffic.counting() as before:
        message = Message(channel, "recv", torch.ones(2), 1, 0).post(7)
    with traffic.counting() as later:
        message.wait()
    assert (before.bytes_received(), later.bytes_received()) == (8, 0)


def test_an_observer_that_has_asked_twice_goes_once():
    heard = Heard()
    with observing(heard):
        with observing(heard):
            assert observers.present.count(heard) == 2
        assert observers.present.count(heard) == 1
    assert heard not in observers.present


def test_a_group_that_carries_no_notes_is_not_emulated():
    """As one of NCCL's alone: a note is a tensor of the CPU."""
    from types import SimpleNamespace

    from dtcourse.collectives.wire import observers

    ports = object()
    emulated = observers.Emulated(SimpleNamespace(ports=lambda: ports, arrival_decides=True))
    for carries, expected in ((True, ports), (False, None)):
        message = SimpleNamespace(channel=SimpleNamespace(carries_notes=carries), peer=0)
        emulated.begins(message)
        assert message.ports is expected
