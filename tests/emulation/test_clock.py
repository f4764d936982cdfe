"""Lanes, ports and waiting, without ranks."""

from __future__ import annotations

import threading
import time

import pytest

from dtcourse import emulation, events
from dtcourse.emulation import EmulatedNetwork, clock
from dtcourse.emulation.clock import Lane, VirtualClock
from dtcourse.emulation.network import Port, Ports
from dtcourse.emulation.wall import WallClock


@pytest.fixture(autouse=True)
def real_clock_afterwards():
    yield
    clock.install(None)


def test_a_port_takes_one_message_at_a_time_and_fills_holes():
    port = Port()
    assert port.occupy(10, 5) == 10
    assert port.occupy(12, 5) == 15  # behind the first
    # asked for later, though it is there earlier: there is room before
    assert port.occupy(0, 5) == 0
    assert port.occupy(0, 6) == 20  # from 5 to 10 there is not
    assert port.occupy(3, 5) == 5
    assert port.occupy(7, 0) == 10  # a message of no time still has to find the port free


def test_a_message_takes_latency_gap_and_its_bytes():
    net = EmulatedNetwork(latency=1.0, bandwidth=100, gap=0.5)
    sender, receiver = Ports(net, 0), Ports(net, 1)
    left, head = sender.send(200, dst=1, now=10.0)
    assert (left, head) == (12.5, 11.0)
    assert receiver.receive(200, src=0, head=head) == 13.5 == 10 + net.seconds(200)
    left, head = sender.send(200, dst=2, now=10.0)  # another receiver, the same port
    assert (left, head) == (15.0, 13.5)


def test_two_messages_to_one_rank_queue_at_its_port():
    net = EmulatedNetwork(latency=1.0, bandwidth=100)
    port = Ports(net, 2)
    assert port.receive(100, src=0, head=1.0) == 2.0
    assert port.receive(100, src=1, head=1.0) == 3.0  # incast


def test_the_nodes_own_port_is_apart_from_the_one_between_nodes():
    ports = Ports(EmulatedNetwork(0, 100, node_size=2, between=(0, 10)), rank=0)
    assert ports.send(100, dst=2, now=0.0)[0] == 10.0
    assert ports.send(100, dst=1, now=0.0)[0] == 1.0


def test_time_is_computed_waited_and_slept():
    virtual = VirtualClock()
    clock.install(virtual)
    virtual.compute(1.0)
    emulation.sleep(2.0)
    virtual.wait_until(10.0)
    virtual.wait_until(5.0)  # long there
    assert emulation.now() == events.now() == 10.0
    account = emulation.account()
    assert (account.total, account.computed, account.waited, account.slept) == (10, 1, 7, 2)
    assert account.overrun == 0


def test_a_lane_starts_when_it_is_free_and_its_caller_has_come_so_far():
    virtual, lane = VirtualClock(), Lane("collectives")
    clock.install(virtual)
    virtual.compute(3.0)
    with clock.on(lane, emulation.now()):
        virtual.wait_until(8.0)
        assert emulation.now() == 8.0
    assert emulation.now() == 3.0  # the caller goes on
    with clock.on(lane, emulation.now()):
        assert emulation.now() == 8.0  # the lane was busy until then
    virtual.wait_until(lane.time)
    assert emulation.now() == 8.0 and virtual.main.waited == 5.0


def test_a_lane_belongs_to_the_thread_that_is_on_it():
    virtual, lane, seen = VirtualClock(), Lane("collectives"), []
    clock.install(virtual)

    def work():
        with clock.on(lane, 4.0):
            seen.append(emulation.now())

    with clock.on(Lane("other"), 7.0):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        seen.append(emulation.now())
    assert seen == [4.0, 7.0]


def test_each_lane_has_ports_of_its_own_unless_they_are_shared():
    net = EmulatedNetwork(0, 100)
    for shared in (False, True):
        virtual = VirtualClock(0, EmulatedNetwork(0, 100, shared_ports=shared))
        main = virtual.ports()
        with virtual.on(Lane("collectives"), 0.0):
            assert (virtual.ports() is main) == shared
    assert VirtualClock(0, None).ports() is None
    assert net.shared_ports is False


def test_without_a_cluster_the_clock_is_the_machines():
    assert abs(emulation.now() - time.monotonic()) < 1.0
    began = time.monotonic()
    emulation.sleep(0.02)
    assert time.monotonic() - began >= 0.02
    with pytest.raises(ValueError, match="nothing is emulated here"):
        emulation.account()
    with pytest.raises(ValueError, match="0 seconds or more; got -1"):
        emulation.sleep(-1)


def test_the_wall_clock_sleeps_what_is_emulated():
    wall = WallClock(slowdown=2.0)
    clock.install(wall)
    began = time.monotonic()
    for _ in range(100):
        wall.compute(100e-6)  # each too short to be slept by itself
    assert emulation.now() >= 0.01  # reading the time sleeps off what is owed
    assert time.monotonic() - began >= 0.02  # real seconds: twice as many
    wall.wait_until(emulation.now() + 0.01, emulation.now())
    emulation.sleep(0.01)
    assert time.monotonic() - began >= 0.06
    account = emulation.account()
    assert account.computed == pytest.approx(0.01) and account.slept == pytest.approx(0.01)
    assert account.waited == pytest.approx(0.01, rel=0.2)
    assert account.total >= 0.03


def test_what_the_machine_was_late_by_is_overrun_and_no_waiting():
    wall = WallClock()
    time.sleep(0.05)  # the machine has other work: nothing of it is emulated
    since = wall.now()
    wall.wait_until(since + 0.01, since)
    account = wall.account()
    assert account.waited == pytest.approx(0.01, rel=0.01)
    assert account.overrun >= 0.8  # 0.05 of 0.06, and more where it was later still
