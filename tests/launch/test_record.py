"""record=True: what every rank did, on one clock, and what it sent, for gloo and for our own backends."""

from __future__ import annotations

import itertools
import time

import pytest
import torch
import torch.distributed as dist

from dtcourse import events, launch
from dtcourse.events import Timeline

CHAIN = 6


def relay():
    """A token goes from rank to rank. Each forwards it with its own stamp of the moment at which it held it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    token = torch.zeros(size * CHAIN, dtype=torch.float64)
    for turn in range(CHAIN):
        if rank or turn:
            with events.span("receive", "communication", bytes=token.nbytes, detail={"turn": turn}):
                dist.recv(token, src=(rank - 1) % size)
        with events.span("hold", "compute", detail={"turn": turn}):
            time.sleep(0.002)
            token[turn * size + rank] = time.monotonic()
        if rank < size - 1 or turn < CHAIN - 1:
            with events.span("send", "communication", bytes=token.nbytes, detail={"turn": turn}):
                dist.send(token, dst=(rank + 1) % size)
    return token


def own(timeline: Timeline, name: str, rank: int | None = None):
    """Spans that `relay` itself recorded."""
    return [e for e in timeline.of(name=name, rank=rank) if "turn" in e.detail]


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_spans_of_all_ranks_lie_on_one_clock(backend):
    """Causality: no rank may hold the token before the one before it has let go, whatever clock its events have."""
    before = time.monotonic()
    run = launch(relay, 3, backend=backend, record=True)
    after = time.monotonic()
    holds = sorted(own(run.timeline, "hold"), key=lambda e: (e.detail["turn"], e.rank))
    assert [(e.detail["turn"], e.rank) for e in holds] == [
        (t, r) for t in range(CHAIN) for r in range(3)
    ]
    for first, then in itertools.pairwise(holds):
        assert first.end <= then.start, f"{then} began before {first} ended"
    for hold, stamp in zip(holds, run[2].tolist(), strict=True):
        assert hold.start <= stamp <= hold.end, "the token was stamped inside its span"
    for event in run.timeline:
        assert before <= event.start <= event.end <= after, "the notebook's clock is the same one"


def test_a_receive_ends_after_its_send_began():
    timeline = launch(relay, 2, record=True).timeline
    sends = {(e.rank, e.detail["turn"]): e for e in own(timeline, "send")}
    checked = 0
    for receive in own(timeline, "receive"):
        rank, turn = receive.rank, receive.detail["turn"]
        send = sends[(1 - rank, turn if rank else turn - 1)]
        assert receive.end >= send.start
        checked += 1
    assert checked == 2 * CHAIN - 1


def test_what_a_rank_did_in_which_order_with_bytes_and_kind():
    def step():
        with events.span("forward", "compute"):
            with events.span("load", "data", bytes=64):
                pass
        events.instant("here", "step")
        with events.span("store", "memory", bytes=128, detail={"bucket": 3}):
            pass
        return events.recording()

    run = launch(step, 2, record=True)
    assert list(run) == [True, True]
    assert run.timeline.ranks == [0, 1]
    for rank in (0, 1):
        assert run.timeline.order(rank) == ["forward", "load", "here", "store"]
        (stored,) = run.timeline.of(rank=rank, name="store")
        assert (stored.kind, stored.bytes, stored.detail) == ("memory", 128, {"bucket": 3})
        forward, load = (run.timeline.of(rank=rank, name=n).events[0] for n in ("forward", "load"))
        assert forward.start <= load.start <= load.end <= forward.end


def test_a_span_whose_block_raises_is_recorded_too():
    def step():
        try:
            with events.span("tried", "compute"):
                raise KeyError
        except KeyError:
            pass

    assert launch(step, 1, record=True).timeline.order(0) == ["tried"]


def test_events_of_several_threads_of_a_rank_all_arrive():
    def step():
        import threading

        def work(number):
            for _ in range(200):
                with events.span(f"work {number}", "compute", lane=f"thread {number}"):
                    pass

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    timeline = launch(step, 2, record=True).timeline
    assert len(timeline) == 2 * 4 * 200
    assert len(timeline.of(rank=1, lane="thread 3")) == 200


def all_reduce(n):
    total = torch.ones(n)
    dist.all_reduce(total)
    dist.barrier()
    return total[0].item()


def test_our_own_backend_counts_messages_and_bytes_exactly():
    """A ring of 4 sends 2(p-1) chunks of n/p elements of 4 bytes each, from every rank."""
    run = launch(all_reduce, 4, 1000, backend="ring", record=True)
    assert run[3] == 4.0
    assert not run.traffic.algorithmic
    for rank in range(4):
        assert run.traffic.messages_sent(rank=rank, operation="all_reduce") == 6
        assert run.traffic.bytes_sent(rank=rank, operation="all_reduce") == 6 * 1000
        assert run.traffic.bytes_received(rank=rank, operation="all_reduce") == 6 * 1000


def test_gloo_is_counted_by_its_algorithmic_volume_and_says_so():
    run = launch(all_reduce, 4, 1000, record=True)
    assert run.traffic.algorithmic
    assert run.traffic.bytes_sent(rank=2, operation="all_reduce") == 2 * 3 * 4000 // 4
    assert "algorithmic" in repr(run.traffic)


@pytest.mark.parametrize("backend", ["gloo", "ring"])
def test_collectives_are_events_with_their_bytes(backend):
    timeline = launch(all_reduce, 2, 1000, backend=backend, record=True).timeline
    for rank in (0, 1):
        found = timeline.of(rank=rank, name="all_reduce", kind="communication")
        assert len(found) >= 1
        assert max(e.bytes for e in found) > 0


def test_the_timeline_survives_a_file_and_a_trace(tmp_path):
    timeline = launch(relay, 2, record=True).timeline
    timeline.save(tmp_path / "timeline.json")
    assert Timeline.load(tmp_path / "timeline.json").events == timeline.events
    trace = timeline.to_chrome_trace()["traceEvents"]
    assert {e["pid"] for e in trace} == {0, 1}


def test_each_run_records_for_itself():
    first = launch(all_reduce, 2, 10, backend="ring", record=True)
    second = launch(all_reduce, 2, 20, backend="ring", record=True)
    assert second.traffic.bytes_sent(operation="all_reduce") == 2 * first.traffic.bytes_sent(
        operation="all_reduce"
    )
    assert second.timeline.start >= first.timeline.start + first.timeline.span


def test_what_was_not_recorded_says_how_to():
    def step():
        with events.span("unseen", "compute"):
            return events.recording()

    run = launch(step, 2)
    assert list(run) == [False, False]
    for ask in (lambda: run.timeline, lambda: run.traffic):
        with pytest.raises(ValueError, match=r"nothing was recorded: launch\(..., record=True\)"):
            ask()


def test_a_function_that_forms_its_own_group_is_recorded_too():
    def by_hand():
        dist.init_process_group("gloo")
        with events.span("after", "compute"):
            pass

    run = launch(by_hand, 2, init=False, record=True)
    assert run.timeline.order(1) == ["after"]
    assert run.traffic.bytes_sent() == 0


def test_many_events_come_back():
    def step(n):
        for _ in range(n):
            events.instant("tick")

    run = launch(step, 2, 30_000, record=True)
    assert len(run.timeline) == 60_000
