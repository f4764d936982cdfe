"""What starts a training again: after what, how often, with how many ranks, and what it says of that."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial

import pytest
import torch.distributed as dist

from dtcourse import launch
from dtcourse.fault_tolerance import (
    REQUEUE,
    Checkpoints,
    HeardBeats,
    Heartbeat,
    folders,
    run_log,
)
from dtcourse.fault_tolerance.recovery import Limits, Recovery
from dtcourse.fault_tolerance.run_log import RunLog, Step, goodput
from dtcourse.fault_tolerance.silence import Deadline, Silent, state
from dtcourse.launch import RankFailure, send_message
from tests.fault_tolerance.test_preemption import wait_for


class CountedClock:
    """Seconds pass where somebody sleeps, and nowhere else."""

    def __init__(self):
        self.now, self.slept = 100.0, []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def recovery_of(function, folder, *args, ranks=2, **keywords):
    def start(size, hear):
        return launch(function, size, *args, wait=False, on_message=hear)

    return Recovery(start, folder, ranks, clock=CountedClock(), **keywords)


def test_pauses_double_until_it_gives_up(tmp_path):
    recovery = recovery_of(
        sys.exit, tmp_path, 3, limits=Limits(fruitless=4, pause=2.0, longest=5.0)
    )
    with pytest.raises(RankFailure, match=r"sys\.exit\(3\)") as caught:
        recovery.run()
    assert recovery.clock.slept == [2.0, 4.0, 5.0]
    row = "4 in a row without a newer checkpoint"
    assert caught.value.__notes__ == [f"It was failure 4 of this run, {row}."]
    said = [(one.seconds, one.what) for one in recovery.log.entries if "sys.exit" not in one.what]
    start = "starts 2 ranks, without a checkpoint"
    assert said == [
        *[(0, start), (0, "waits for 2 s"), (2, start), (2, "waits for 4 s"), (6, start), (6, "waits for 5 s")],
        *[(11, start), (11, f"gives up after 4 failures, {row}")],
    ]  # fmt: skip


def one_more(folder, last):
    """A run that gets a checkpoint further in each start and dies, but for the last one."""
    checkpoints = Checkpoints(folder)
    step = len(checkpoints.steps()) + 1
    run_log.tell_step(step, time.monotonic())
    checkpoints.save(step, lambda aside, group: (aside / f"{dist.get_rank()}").write_text("all"))
    if step == last:
        return step
    sys.exit(3)


def test_a_newer_checkpoint_begins_the_count_anew(tmp_path):
    limits = Limits(fruitless=1, failures=2)
    recovery = recovery_of(one_more, tmp_path, str(tmp_path), 3, limits=limits)
    assert list(recovery.run()) == [3, 3]
    assert (recovery.starts, recovery.failures, recovery.clock.slept) == (3, 2, [1.0, 1.0])
    whats = [one.what for one in recovery.log.entries if one.what.startswith("starts")]
    assert whats[2] == "starts 2 ranks, from the checkpoint after step 2"
    assert [step.number for step in recovery.log.steps] == [1, 1, 2, 2, 3, 3]
    assert folders.newest(tmp_path) == 3
    (tmp_path / folders.name_of(3) / "1").write_text("al")
    assert folders.newest(tmp_path) == 2, "the newest complete one"


def test_so_many_failures_and_no_more(tmp_path):
    recovery = recovery_of(one_more, tmp_path, str(tmp_path), 9, limits=Limits(failures=1))
    with pytest.raises(RankFailure):
        recovery.run()
    assert (recovery.starts, recovery.failures) == (2, 2)
    assert recovery.log.entries[-1].what.startswith("gives up after 2 failures, 0 in a row")


def first_then(folder, first):
    """first(rank) in the first start; in others the world size."""
    is_first = not (folder / "began").exists()
    dist.barrier()
    if is_first:
        if dist.get_rank() == 0:
            (folder / "began").touch()
        dist.barrier()
        first(dist.get_rank())
    return dist.get_world_size()


def leave(rank):
    sys.exit(REQUEUE)


def test_who_was_preempted_starts_at_once_also_with_another_number_of_ranks(tmp_path):
    limits = Limits(failures=0)
    recovery = recovery_of(
        first_then, tmp_path, tmp_path, leave, ranks=lambda number: 3 - number, limits=limits
    )
    assert list(recovery.run()) == [1]
    assert (recovery.starts, recovery.failures, recovery.clock.slept) == (2, 0, [])
    assert recovery.log.entries[1].what == "the ranks have left as they were asked to"


def sleep(rank):
    time.sleep(3600 if rank == 1 else 0)
    dist.barrier()


@pytest.mark.skipif(not state(os.getpid()), reason="the system does not tell of processes")
def test_a_stopped_rank_is_noticed_named_and_killed(tmp_path):
    recovery = recovery_of(first_then, tmp_path, tmp_path, sleep, watch=Deadline(stopped=0.3))

    def stop():
        wait_for(tmp_path / "began")
        while not recovery.pids:  # the launcher's thread may be behind its ranks
            time.sleep(0.01)
        os.kill(recovery.pids[1], signal.SIGSTOP)

    thread = threading.Thread(target=stop)
    thread.start()
    assert list(recovery.run()) == [2, 2]
    thread.join()
    whats = [one.what for one in recovery.log.entries]
    assert whats[1].startswith("stopped: rank 1 for ")
    assert whats[2].startswith("rank 1 of 2 was killed by SIGKILL")
    assert recovery.starts == 2


class Complains:
    """Of the first start, when the ranks are in it; not knowing of whom."""

    def __init__(self, folder):
        self.folder, self.starts = folder, 0

    def begin(self, size):
        self.starts += 1

    def hear(self, rank, message):
        pass

    def look(self, pids):
        if self.starts == 1 and (self.folder / "began").exists():
            return Silent((), "no progress")
        return None


def test_a_run_without_progress_is_cancelled(tmp_path):
    recovery = recovery_of(first_then, tmp_path, tmp_path, sleep, watch=Complains(tmp_path))
    assert list(recovery.run()) == [2, 2]
    whats = [one.what for one in recovery.log.entries]
    assert whats[1:3] == ["no progress", "the launch of first_then was cancelled"]
    assert recovery.starts == 2


def hangs(folder, beats):
    """Rank 1 sleeps in the third step of the first start; the second one has nothing to do."""
    is_first = not (folder / "began").exists()
    dist.barrier()
    with Heartbeat(beats, interval=0.2, floor=1.0) as watch:
        for number in range(1, 10) if is_first else ():
            (folder / "began").touch()
            if number == 3 and dist.get_rank() == 1:
                time.sleep(3600)
            dist.barrier()
            watch.step(number)
    return dist.get_world_size()


def test_a_rank_that_hangs_is_named_by_its_beats_and_killed(tmp_path):
    beats = tmp_path / "beats"
    recovery = recovery_of(hangs, tmp_path, tmp_path, beats, watch=HeardBeats(beats))
    assert list(recovery.run()) == [2, 2]
    whats = "\n".join(one.what for one in recovery.log.entries)
    assert "rank 1 is hung: " in whats and "time.sleep(3600)" in whats
    assert "rank 1 of 2 was killed by SIGKILL" in whats
    assert recovery.starts == 2


def test_an_error_of_the_watch_leaves_no_ranks(tmp_path):
    class Fails(Complains):
        def look(self, pids):
            self.pids = pids or self.pids
            if (self.folder / "began").exists():
                raise KeyError("the watch is broken")

    watch = Fails(tmp_path)
    watch.pids = ()
    with pytest.raises(KeyError, match="the watch is broken"):
        recovery_of(first_then, tmp_path, tmp_path, sleep, watch=watch).run()
    assert len(watch.pids) == 2
    for pid in watch.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_silent_run_and_one_that_speaks():
    deadline = Deadline(stopped=0.01, silent=0.02)
    time.sleep(0.02)
    assert deadline.look(()).why.startswith("no word from any rank for ")
    deadline = Deadline(stopped=0.01, silent=3600)
    assert deadline.look((os.getpid(),)) is None


def talks():
    run_log.tell("begins")
    send_message({"own": dist.get_rank()})


def test_other_messages_go_on_to_who_wants_them(tmp_path):
    heard = []
    recovery = recovery_of(
        talks, tmp_path, ranks=1, on_message=lambda rank, what: heard.append((rank, what))
    )
    recovery.run()
    assert heard == [(0, {"own": 0})]
    assert str(recovery.log).splitlines() == [
        "seconds  step  who       what",
        "   0.00     0  recovery  starts 1 rank, without a checkpoint",
        "   0.00     0  rank 0    begins",
        "   0.00     0  recovery  1 rank returned",
    ]


def test_of_a_step_that_was_repeated_the_last_time_counts():
    steps = [Step(1, 0, 2), Step(2, 2, 3), Step(2, 10, 14), Step(3, 14, 15)]
    good = goodput(steps, 20.0)
    assert (good.useful, good.repeated, good.steps, good.again) == (7, 1, 3, 1)
    assert good.share == 7 / 20
    with pytest.raises(ValueError, match="a run takes time; got 0 s"):
        goodput([], 0)
    assert RunLog().step == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (partial(Limits, failures=-1), "failures is 0 or more and fruitless 1 or more; got -1 and 3"),
        (partial(Limits, fruitless=0), "fruitless 1 or more; got 100 and 0"),
        (partial(Limits, pause=70.0), "the second not below the first; got 70.0, 60.0"),
        (partial(Deadline, 0), "stopped and silent are seconds, the second not below the first; got 0"),
    ],
)  # fmt: skip
def test_what_cannot_be(make, said):
    with pytest.raises(ValueError, match=said):
        make()
