"""wait_any: which of several messages is over first."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist

from dtcourse import emulation, launch
from dtcourse.collectives import p2p
from dtcourse.collectives.wire.arrivals import Posted, wait_any
from dtcourse.emulation import EmulatedNetwork
from dtcourse.launch import RankFailure


class Started:
    """What a backend gives back: here it is over when the test says so. As with gloo, a second wait() never returns."""

    def __init__(self):
        self.over, self.waits = threading.Event(), 0

    def wait(self, timeout=None):
        self.waits += 1
        assert self.waits == 1, "gloo would wait for ever"
        assert self.over.wait(60)

    def is_completed(self):
        return self.over.is_set()


def over_in_turn(works, order):
    """Has the watched messages be over in that order."""
    for index in order:
        works[index]._started.over.set()
        works[index].settle()


def test_the_first_to_be_over_comes_first_whatever_its_place_so_none_starves():
    works = [Posted(Started()) for _ in range(4)]
    works[2]._started.over.set()
    assert wait_any(works) == 2, "the only one that is over"
    works[2].wait()
    over_in_turn(works, [3, 0])
    # A peer that sends all the time: its next message is over later than what the others sent before.
    works[2] = Posted(Started())
    over_in_turn(works, [2, 1])
    order = []
    for _ in works:
        order.append(wait_any(works))
        works[order[-1]].wait()
    assert order == [3, 0, 2, 1]


def test_a_watched_message_is_waited_for_once_and_may_be_asked_again():
    works = [Posted(Started()), Posted(Started())]
    works[1]._started.over.set()
    assert wait_any([None, *works]) == 2
    assert wait_any(works) == 1, "it was not waited for: it is still the first"
    works[1].wait()
    threading.Timer(0.05, works[0]._started.over.set).start()
    assert works[0].wait(), "a thread watches it already"
    assert [w._started.waits for w in works] == [1, 1]
    assert works[0].wait()
    assert works[0].is_completed()


def test_what_cannot_be_waited_for_is_refused():
    done = Posted(Started())
    done._started.over.set()
    done.wait()
    with pytest.raises(ValueError, match="none of 2 works is left"):
        wait_any([None, done])
    with pytest.raises(ValueError, match=r"works\[1\] is a Event; wait_any takes what p2p.isend"):
        wait_any([done, threading.Event()])


def _in_the_order_of_sending():
    """Rank 2 sends when it is told to, then rank 1: each only when the one before has come. Sends count too."""
    me, x, token = p2p.rank(), torch.zeros(3), torch.zeros(1)
    if me:
        p2p.recv(token, 0, tag=1)
        p2p.send(x + me, 0)
        big = torch.empty(3_000_000)
        p2p.recv(token, 0, tag=2)
        if me == 1:
            p2p.recv(big, 0, tag=3)
        return None
    got = [torch.zeros(3) for _ in range(3)]
    big = torch.ones(3_000_000)
    works = [p2p.isend(big, 1, tag=3), p2p.irecv(got[1], 1), p2p.irecv(got[2], 2)]
    order = []
    for peer in (2, 1):
        p2p.send(token, peer, tag=1)
        order.append(p2p.wait_any(works))
        works[order[-1]].wait()
    for peer in (1, 2):
        p2p.send(token, peer, tag=2)
    order.append(p2p.wait_any(works))  # 12 MB leave when they are received
    return order, [t.tolist() for t in got[1:]], [w.wait() for w in works]


@pytest.mark.parametrize(
    "options", [{}, {"record": True}, {"backend": "ring"}], ids=["gloo", "recorded", "ring"]
)
def test_messages_come_in_the_order_in_which_they_are_sent(options):
    run = launch(_in_the_order_of_sending, 3, **options)
    assert run[0] == ([2, 1, 0], [[1.0] * 3, [2.0] * 3], [True] * 3)
    if "record" in options:
        assert run.traffic.bytes_sent() == run.traffic.bytes_received() == 12_000_000 + 2 * 12 + 16
        assert len(run.timeline.of(rank=0, name="recv")) == 2


def _one_dies():
    me, x = p2p.rank(), [torch.zeros(2) for _ in range(3)]
    if me == 1:
        p2p.recv(x[0], 0)
        os.kill(os.getpid(), signal.SIGKILL)
    if me == 2:
        p2p.recv(x[0], 0)
        p2p.send(torch.ones(2), 0)
        return None
    works = [None, p2p.irecv(x[1], 1), p2p.irecv(x[2], 2)]
    # Rank 1 dies when these are posted: gloo refuses to post to a rank that is known to be dead. The word is not
    # waited for, since its sender may learn of the death first.
    word = p2p.isend(x[0], 1)
    lost = p2p.wait_any(works)
    said = []
    for _ in range(2):
        try:
            works[lost].wait()
        except RuntimeError as error:
            said.append("onnection" in str(error))
    p2p.send(x[0], 2)
    del word
    return lost, said, p2p.wait_any(works), works[2].wait(), x[2].tolist()


def test_a_message_that_will_never_come_is_over_too_and_the_others_still_come():
    run = launch(_one_dies, 3, on_failure="continue")
    assert run[0] == (1, [True, True], 2, True, [1.0, 1.0])
    assert [failure.rank for failure in run.failures] == [1]


# --- emulated ---------------------------------------------------------------------------------------------------


def _near_and_far():
    """Rank 2's message really comes first, from another node; emulated, it is three seconds on its way."""
    me, x, began = p2p.rank(), torch.zeros(1), emulation.now()
    if me == 2:
        p2p.send(x, 0)
    if me == 1:
        emulation.sleep(0.1)
        p2p.send(x, 0)
    if me:
        return None
    works = [None, p2p.irecv(torch.zeros(1), 1), p2p.irecv(torch.zeros(1), 2)]
    order, times = [], []
    for _ in range(2):
        order.append(p2p.wait_any(works))
        works[order[-1]].wait()
        times.append(emulation.now() - began)
    return order, times


def test_on_the_wall_clock_what_arrives_first_there_comes_first():
    net = EmulatedNetwork(1e-3, node_size=2, between=EmulatedNetwork(3.0))
    order, times = launch(_near_and_far, 3, network=net, clock="wall")[0]
    assert order == [1, 2]
    assert times[1] >= 2.9, "a sleep is never shorter than asked"


def _one_or_two():
    me, x = p2p.rank(), torch.zeros(1)
    if me:
        p2p.send(x, 0)
        return None
    works = [p2p.irecv(torch.zeros(1), 1), p2p.irecv(torch.zeros(1), 2)]
    works[0].wait()
    return p2p.wait_any(works), emulation.now(), works[1].wait()


def test_the_virtual_clock_knows_one_message_but_not_which_of_two():
    net = EmulatedNetwork(0.5)
    index, moment, _ = launch(_one_or_two, 3, network=net, clock="virtual")[0]
    assert (index, moment) == (1, 0.5)
    with pytest.raises(RankFailure, match=r'wait_any of 2 messages.*clock="wall"'):
        launch(_near_and_far, 3, network=net, clock="virtual")


def test_no_group_is_needed_to_refuse():
    assert not dist.is_initialized()
    with pytest.raises(ValueError, match="none of 0 works"):
        wait_any([])
