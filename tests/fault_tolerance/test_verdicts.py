"""The rules of watching, on a clock of the test's own: nobody waits."""

from __future__ import annotations

import dataclasses
import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

from dtcourse.fault_tolerance.watching import Heartbeat, Watcher
from dtcourse.fault_tolerance.watching.beat import Beat, unpacked
from dtcourse.fault_tolerance.watching.places import Folder, Store, place_of
from dtcourse.fault_tolerance.watching.process import Process, this_process
from dtcourse.fault_tolerance.watching.progress import Progress
from dtcourse.fault_tolerance.watching.sentences import sentence

PLACE = "waited in all_reduce(), called in train() at line 7"


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Ranks:
    """Ranks that beat as they are told, in memory, and who watches them."""

    def __init__(self, world_size=2, **beat):
        self.clock, self.lying, self.states = Clock(), {}, {}
        for rank in range(world_size):
            self.lying[rank] = Beat(
                rank, 1, Process("here", 10 + rank, 5), **({"step": 3, "longest": (1.0,)} | beat)
            )
        self.reachable = True
        self.watcher = Watcher(
            self, world_size, clock=self.clock, state=lambda process: self.states.get(process.pid - 10, "runs")
        )  # fmt: skip
        self.watcher.look()

    def read(self, ranks):
        if not self.reachable:
            raise OSError("no such folder")
        return {rank: self.lying[rank].packed() for rank in ranks if rank in self.lying}

    def write(self, rank, data):
        raise AssertionError("a watcher writes nothing")

    def beats(self, *ranks, **changed):
        for rank in ranks:
            old = self.lying[rank]
            self.lying[rank] = dataclasses.replace(old, **({"number": old.number + 1} | changed))

    def kinds(self, after=0.0):
        self.clock.now += after
        return [verdict.kind for verdict in self.watcher.look().verdicts]


@pytest.mark.parametrize(("interval", "limit"), [(0.1, 2.0), (1.0, 2.0), (3.0, 6.0)])
@pytest.mark.parametrize(
    ("state", "kind"),
    [("gone", "dead"), ("stopped", "stopped"), ("unknown", "dead or stopped"), ("runs", "silent")],
)
def test_silent_for_two_intervals_and_two_seconds(interval, limit, state, kind):
    ranks = Ranks(interval=interval)
    ranks.states[1] = state
    assert ranks.kinds(limit) == ["running", "running"], "not more than two intervals yet"
    ranks.beats(0)
    assert ranks.kinds(0.01) == ["running", kind]
    look = ranks.watcher.look()
    assert bool(look) is (kind != "silent")
    if look:
        assert str(look).startswith(f"rank 1 is {kind}: no beat for {limit:.1f} s")
        assert "its last step was 3" in str(look)


def test_who_runs_and_is_silent_is_hung_after_three_times_the_longest_that_it_ever_was():
    ranks = Ranks(1, gap=7.0)
    assert ranks.kinds(20.9) == ["silent"]
    assert ranks.kinds(0.2) == ["hung"]
    assert "runs, and has not beaten for 21.1 s" in str(ranks.watcher.look())
    ranks.beats(0, pausing="saving", paused=1.0, pause_limit=60.0)
    assert ranks.kinds() == ["pausing"]
    assert ranks.kinds(58.0) == ["silent"], "what is announced may hold Python's lock"
    assert ranks.kinds(2.0) == ["hung"]
    ranks.beats(0, pausing="", step=None)
    assert ranks.kinds() == ["starting"]
    assert ranks.kinds(900.0) == ["silent"]


@pytest.mark.parametrize(("longest", "limit"), [((4.0, 1.0), 12.0), ((0.1,), 5.0)])
def test_hung_is_no_step_for_three_of_the_longest_and_never_below_the_floor(longest, limit):
    ranks = Ranks(longest=longest)
    ranks.beats(0, 1, idle=limit, doing="was in train()")
    assert ranks.kinds() == ["running", "running"]
    ranks.beats(1, idle=limit + 0.1)
    assert ranks.kinds() == ["running", "hung"]
    said = str(ranks.watcher.look())
    assert said.startswith(
        f"rank 1 is hung: it beats, and has made no step for {limit + 0.1:.1f} s"
    )
    assert f"the limit is {limit:.1f} s); its last step was 3; it was in train()" in said


def test_before_a_first_step_nothing_is_hung_and_it_says_why():
    ranks = Ranks(1, step=None, longest=(), idle=500.0, doing="was in compile()")
    assert ranks.kinds() == ["starting"]
    (verdict,) = ranks.watcher.look().verdicts
    assert "how long one takes is not known yet" in sentence(verdict)
    assert "it was in compile()" in sentence(verdict)


def test_a_pause_that_is_announced_is_no_hang_unless_it_is_longer_than_it_said():
    ranks = Ranks(idle=900.0, pausing="saving", paused=900.0)
    assert ranks.kinds() == ["pausing", "pausing"]
    ranks.beats(1, pause_limit=60.0)
    assert ranks.kinds() == ["pausing", "hung"]
    assert "it is saving for 900.0 s, and 60 s were announced" in str(ranks.watcher.look())


@pytest.mark.parametrize(
    "other",
    [
        {"step": None},
        {"pausing": "saving"},
        {"idle": 4.0, "since_step": 4.0, "longest": (9.0,)},
        {"idle": 0.2, "since_step": 7.0},  # the pause is over, and its step is not
    ],
)
def test_who_waits_is_well_while_the_one_that_it_waits_for_may_come(other):
    """A rank 1 with a legal reason, and rank 0 in the collective that ends the step."""
    ranks = Ranks()
    ranks.beats(0, idle=6.0, waits=True, doing=PLACE)
    ranks.beats(1, **other)
    for _ in range(4):
        ranks.beats(0, 1)
        assert ranks.kinds(1.0)[0] == "waiting" and not ranks.watcher.look()
    # Rank 1 has come, and says so before rank 0 does.
    ranks.beats(1, pausing="", idle=0.1, since_step=0.1, step=9, longest=(1.0,))
    assert ranks.kinds()[0] == "waiting"
    assert ranks.kinds(0.9)[0] == "waiting"
    ranks.beats(0, idle=0.5, step=9)
    assert ranks.kinds(0.1) == ["running", "running"]


def late(ranks, world_size, **beat):
    """So many ranks beat and are late, for as long as it takes to be sure."""
    for _ in range(4):
        ranks.beats(*range(world_size), idle=6.0, since_step=6.0, **beat)
        ranks.kinds(1.0)
    return ranks


def test_who_waits_while_the_others_move_on_is_hung_when_two_more_intervals_are_over():
    ranks = Ranks()
    for waiting in (0.0, 1.0, 1.0):
        ranks.beats(0, idle=6.0, waits=True, doing=PLACE)
        ranks.beats(1)
        assert ranks.kinds(waiting) == ["waiting", "running"]
    ranks.beats(0, 1)
    assert ranks.kinds(0.1) == ["hung", "running"]


def test_the_reason_is_who_does_not_wait():
    ranks = late(Ranks(3), 3, waits=True, doing=PLACE)
    ranks.beats(1, waits=False, doing="was in sleep()")
    look = ranks.watcher.look()
    assert [fault.rank for fault in look.faults] == [0, 1, 2]
    assert [fault.rank for fault in look.reasons] == [1]
    assert str(look).splitlines()[1].startswith("after it, rank 0 is hung")


@pytest.mark.parametrize("apart", [{"doing": "waited in recv()"}, {"step": 2}])
def test_where_all_wait_the_reason_is_who_waits_elsewhere(apart):
    ranks = late(Ranks(3), 3, waits=True, doing=PLACE)
    assert [fault.rank for fault in ranks.watcher.look().reasons] == [0, 1, 2]
    ranks.beats(2, **apart)
    assert [fault.rank for fault in ranks.watcher.look().reasons] == [2]


def test_a_rank_that_left_is_no_fault_and_who_still_waits_for_it_is():
    ranks = Ranks()
    ranks.beats(1, left="returned")
    late(ranks, 1, waits=True, doing=PLACE)
    assert ranks.kinds() == ["hung", "left"]
    ranks.beats(0, left="raised ValueError")
    ranks.clock.now += 1000
    look = ranks.watcher.look()
    assert look.all_left and not look
    assert str(look) == "no fault in 2 ranks: 2 left"


def test_who_never_began_and_beats_of_an_earlier_start():
    ranks = Ranks()
    del ranks.lying[1]
    watcher = Watcher(ranks, 2, clock=ranks.clock, patience=30)
    assert [v.kind for v in watcher.look().verdicts] == ["running", "absent"]
    ranks.beats(0)
    without = Watcher(ranks, 2, clock=ranks.clock)
    without.look()
    ranks.clock.now += 31
    ranks.beats(0)
    assert not without.look(), "a busy machine may take minutes to start a rank"
    assert [v.kind for v in watcher.look().verdicts] == ["running", "never began"]
    # The first rank of a new start has come; the other's file is still the old one's.
    ranks = Ranks()
    ranks.beats(0, attempt=1)
    assert ranks.kinds() == ["running", "absent"]


def test_a_place_that_cannot_be_read_makes_nobody_silent():
    ranks = Ranks()
    ranks.states = {0: "unknown", 1: "unknown"}
    ranks.reachable = False
    assert ranks.kinds(100.0) == ["running", "running"]
    assert "no such folder" in str(ranks.watcher.look())
    ranks.reachable = True
    assert ranks.kinds(1.0) == ["running", "running"]
    assert ranks.kinds(1.1) == ["dead or stopped"] * 2, "from then on their silence counts"


def test_time_counts_where_a_step_could_have_been_made():
    clock = Clock()
    progress = Progress(1.0, clock)

    def passes(seconds, beats=True):
        for _ in range(seconds):
            clock.now += 1.0
            if beats:
                progress.tick()

    passes(4)
    progress.step()
    passes(1)
    progress.step(7)
    assert (progress.step_number, progress.longest, progress.idle()) == (7, (4.0, 1.0), 0.0)
    passes(2)
    progress.pause("saving", None)
    passes(30)
    progress.pause("writing", 5.0)  # inside
    passes(3)
    assert progress.paused() == ("writing", 3.0, 5.0)
    progress.go_on()
    progress.go_on()
    assert progress.idle() == 2.0
    passes(50, beats=False)  # stopped, and goes on
    progress.step()  # the loop comes first
    progress.tick()
    assert progress.longest == (4.0, 3.0, 1.0) and progress.gap == 50.0
    progress.step()
    assert (progress.step_number, progress.idle()) == (9, 0.0)


def test_processes_are_told_apart():
    mine = this_process()
    assert mine.state() == "runs"
    assert dataclasses.replace(mine, started=mine.started + 1).state() == "gone", (
        "another with that number"
    )
    assert dataclasses.replace(mine, machine="elsewhere").state() == "unknown"


def test_places(tmp_path, monkeypatch):
    beat = Beat(1, 1, this_process(), longest=(1.0, 0.5), doing="was in é()")
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=10))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(server.port))
    for place in (place_of(tmp_path), place_of(None)):
        assert place.read([0, 1]) == {}
        place.write(1, b"old")
        place.write(1, beat.packed())
        assert {rank: unpacked(data) for rank, data in place.read([0, 1]).items()} == {1: beat}
    assert isinstance(place_of(f"tcp://127.0.0.1:{server.port}"), Store)
    assert [file.name for file in tmp_path.iterdir()] == ["beat-1"]
    monkeypatch.delenv("MASTER_PORT")
    with pytest.raises(ValueError, match="MASTER_PORT not set, so there is no store to beat into"):
        place_of(None)


def test_a_place_that_is_full_disturbs_no_step(tmp_path):
    class Full(Folder):
        full = threading.Event()

        def write(self, rank, data):
            if not self.full.is_set():
                self.full.set()
                raise OSError("No space left on device")
            super().write(rank, data)

    with Heartbeat(Full(tmp_path), rank=0, interval=0.01) as watch:
        assert watch.place.full.wait(60)
        watch.step()
        with watch.pause("saving"):
            pass
    said = unpacked(Folder(tmp_path).read([0])[0])
    assert (said.step, said.left) == (1, "returned")


def test_what_cannot_be(tmp_path):
    with pytest.raises(ValueError, match="interval is in seconds, more than 0; got 0"):
        Heartbeat(tmp_path, interval=0)
    with pytest.raises(ValueError, match="floor is in seconds, more than 0; got -1"):
        Heartbeat(tmp_path, floor=-1)
    with pytest.raises(ValueError, match="no rank to watch"):
        Watcher(tmp_path, 0)
    with pytest.raises(ValueError, match="this is no beat of a rank"):
        unpacked(b"{}")
