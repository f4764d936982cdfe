"""In a judge's ranks, only the course writes into the books that an answer is judged by."""

import pytest

from dtcourse.course.judging import books, runs
from dtcourse.course.judging.requirements import Refused
from dtcourse.emulation import EmulatedNetwork
from dtcourse.launch import launch

pytestmark = pytest.mark.slow


def test_one_rank_that_is_refused_keeps_no_other_waiting():
    """The other's receive ran into the time limit, which was then what the judge said."""

    def step(answer):
        import torch
        import torch.distributed as dist

        from dtcourse.collectives import p2p

        books.watch()
        if dist.get_rank() == 0:
            return answer()
        p2p.recv(torch.zeros(2), 0)

    def answer():
        from dtcourse.collectives import traffic

        with traffic.counting():
            traffic.sent(traffic.Label("send", ""), 1, 8)

    with pytest.raises(Refused, match="counts a message that it has not sent"):
        runs.attempt(step, {"answer": answer}, 2, (), {"timeout": 60.0})


def forge():
    """{what is forged: what is said}: this file is not of the course, as an answer is not."""
    import contextlib
    import threading

    import torch
    import torch.distributed as dist

    from dtcourse import emulation, events
    from dtcourse.collectives import p2p, traffic
    from dtcourse.emulation import clock

    before = books.instruments()
    books.watch()
    own, other = torch.ones(2), 1 - dist.get_rank()
    with events.span("mine", "compute"), traffic.counting() as counted, traffic.phase("mine"):
        p2p.exchange(torch.zeros(2), other, own, other)
    dist.all_reduce(own)
    store = dist.PrefixStore("mine", dist.distributed_c10d._get_default_store())
    dist.new_group([0, 1])  # which meets in the store
    emulation.sleep(1.0)
    honest = (counted.bytes_sent(phase="mine"), emulation.now(), books.exchanged(before))

    label, lane = traffic.Label("send", "forward"), before["dtcourse.emulation.clock._clock"].main
    (counter,) = vars(traffic)["_counters"]
    recorder = before["dtcourse.events._recorder"]

    def in_a_thread():
        caught = []

        def run():
            try:
                traffic.sent(label, other, 8)
            except Refused as error:
                caught.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if caught:
            raise caught[0]

    def at_the_end_of_a_block():
        with contextlib.ExitStack() as stack:
            stack.callback(recorder.add, "send", "communication", 0.0, 0.0)

    def as_a_span():
        with events.span("send", "communication"):
            pass

    def on_another_lane():
        with clock.on(clock.Lane("mine"), 0.0):
            pass

    ways = {
        "message": lambda: traffic.sent(label, other, 8),
        "message received": lambda: traffic.received(label, other, 8),
        "message in a thread": in_a_thread,
        "message in the counter": lambda: counter.message(label, "sent", other, 8),
        "event": lambda: events.add("send", "communication", 0.0, 0.0),
        "event of a block": at_the_end_of_a_block,
        "event of a span": as_a_span,
        "clock": lambda: clock.installed(),
        "lane": on_another_lane,
        "time": lambda: setattr(lane, "time", 0.0),
        "time slept": lambda: vars(clock)["_clock"].sleep(-1.0),
        "store": lambda: store.set("mine", "1"),
        "store below": lambda: store.underlying_store.add("mine", 1),
        "store of its own": lambda: dist.HashStore().set("mine", "1"),
        "group of its own": lambda: dist.ProcessGroupGloo(store, 0, 1),
    }
    said = {}
    for name, way in ways.items():
        try:
            way()
        except Refused as error:
            said[name] = str(error)
        else:
            said[name] = "nobody minds"
    events.start_recording(0)
    return honest, said, books.exchanged(before)


def test_who_else_writes_there_is_refused_at_that_moment_and_what_is_honest_is_counted():
    run = launch(forge, 2, record=True, network=EmulatedNetwork(latency=1.0), clock="virtual")
    for rank, (honest, said, exchanged) in enumerate(run):
        nbytes, now, unchanged = honest
        assert (nbytes, now, unchanged) == (8, 4.0, [])
        assert {
            name for name, words in said.items() if not words.startswith("the answer ")
        } == set()
        assert "puts its emulated clock back" in said["time slept"]
        assert "'communication'" in said["event of a span"]
        assert exchanged == ["dtcourse.events._recorder"], "the last of the ways"
        sent = run.traffic.messages_sent(rank=rank, operation="send")
        assert sent == 1, "the honest one alone"
