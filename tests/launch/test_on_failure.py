"""launch(..., on_failure="continue"): a rank that fails is told of, and the others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.emulation import EmulatedDevice
from dtcourse.launch import RankFailure, RankTimeout, deadlock, send_message
from tests import at_once


def go_on(function, world_size=3, *args, **options):
    return launch(function, world_size, *args, on_failure="continue", **options)


FAILURES = {
    "raise": (lambda: 1 / 0, "raised ZeroDivisionError: division by zero"),
    "kill": (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
    "sys.exit": (lambda: sys.exit(3), "called sys.exit(3) before it returned"),
    "os._exit": (lambda: os._exit(4), "left with exit code 4 before it returned"),
}


def test_the_others_go_on_and_the_failure_takes_the_result_s_place():
    def step(die):
        if dist.get_rank() == 1:
            die()
        time.sleep(1.0)  # longer than a launch that stops would leave the others
        send_message("done")
        return dist.get_rank()

    def outcome(how):
        heard = []
        run = go_on(
            *(step, 3, FAILURES[how][0]),
            on_message=lambda rank, message: heard.append((rank, message)),
        )
        return run, heard

    found = at_once.outcomes({how: lambda how=how: outcome(how) for how in FAILURES})
    for how, (_, says) in FAILURES.items():
        assert isinstance(found[how], tuple), f"{how}: {found[how]}"
        the_others_went_on(*found[how], says)


def the_others_went_on(run, heard, says):
    assert (run[0], run[2]) == (0, 2)
    assert isinstance(run[1], RankFailure) and not isinstance(run[1], RankTimeout)
    assert str(run[1]).startswith(f"rank 1 of 3 {says}")
    assert run.failures == [run[1]] and run[1].rank == 1
    assert heard[0] == (1, run[1]), "told at once, not at the end"
    assert sorted(heard[1:]) == [(0, "done"), (2, "done")]
    assert run.seconds >= 1.0 and run.seconds_by_rank[1] is None


def test_the_exception_comes_along_and_the_others_are_not_said_to_be_stopped():
    def step():
        if dist.get_rank() == 0:
            raise KeyError("shard")

    run = go_on(step, 2)
    assert isinstance(run[0].__cause__, KeyError)
    assert 'raise KeyError("shard")' in str(run[0]) and "stopped" not in str(run[0])


def test_a_rank_that_raised_is_gone_for_its_peers():
    """Who waits for it hears of it by a closed connection, as on a cluster, not by a time limit."""

    def step():
        if dist.get_rank() == 0:
            raise ValueError("gone")
        try:
            dist.recv(torch.zeros(1), src=0)
        except RuntimeError as error:
            return type(error).__name__, "onnection" in str(error)

    # At the limit, before which gloo gives nothing up, there would be a RankTimeout and no answer.
    run = go_on(step, 2, timeout=60)
    assert run[1][1], run[1]


def test_at_the_time_limit_those_that_returned_keep_their_results():
    def step():
        while dist.get_rank() == 1:
            time.sleep(0.01)
        return "in time"

    heard = []
    run = go_on(step, timeout=1, on_message=lambda *told: heard.append(told))
    assert (run[0], run[2]) == ("in time", "in time")
    assert isinstance(run[1], RankTimeout) and heard == [(1, run[1])]
    assert "rank 1 of 3 was not done after 1 s: it was in step()" in str(run[1])
    assert run.failures == [run[1]]


def test_all_ranks_may_fail():
    def step():
        time.sleep(0.3 * dist.get_rank())
        raise LookupError(dist.get_rank())

    run = go_on(step, init=True)
    assert [error.rank for error in run.failures] == [0, 1, 2]
    assert list(run) == run.failures and run.seconds == 0.0


def test_what_the_others_recorded_is_kept():
    def step():
        if dist.get_rank() == 1:
            raise ValueError
        from dtcourse.events import span

        with span("work", "compute"):
            time.sleep(0.01)

    run = go_on(step, record=True)
    assert run.timeline.of(name="work").ranks == [0, 2]


def test_ranks_that_wait_for_each_other_are_given_up_and_those_that_returned_keep_their_results():
    def step():
        if dist.get_rank() < 2:
            dist.recv(torch.zeros(1), src=1 - dist.get_rank())
        return "returned"

    with deadlock.found_early():
        run = go_on(step, timeout=300)
    assert run[2] == "returned" and [error.rank for error in run.failures] == [0, 1]
    for rank in (0, 1):
        assert isinstance(run[rank], RankTimeout) and "waited in recv()" in str(run[rank])


@pytest.mark.parametrize("failing", [(1,), (0, 1)])
def test_a_slept_clock_measures_nothing_again_where_a_rank_has_failed(failing):
    tries = []

    def step():
        send_message("begun")
        if dist.get_rank() in failing:
            raise LookupError("lost")
        time.sleep(0.2)  # which the real machine adds: without the failure it would be run again

    run = go_on(
        step, 2, devices=EmulatedDevice(1e12, 1e12), clock="wall",
        on_message=lambda _, message: tries.append(message),
    )  # fmt: skip
    assert tries.count("begun") == 2
    assert {error.rank for error in run.failures} == set(failing)
    if len(failing) == 1:
        assert run.overrun > 0.5
    else:
        with pytest.raises(ValueError, match="all ranks failed"):
            run.overrun  # noqa: B018  # the property raises


def test_stop_stays_the_default_and_other_words_are_refused():
    with pytest.raises(RankFailure):
        launch(lambda: 1 / 0, 2)
    with pytest.raises(ValueError, match=r"on_failure is .*stop.*got 'ignore'"):
        launch(abs, 2, -1, on_failure="ignore")


def test_ctrl_c_while_the_others_go_on_leaves_nothing():
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent("""
            import os, time
            from dtcourse import launch
            from dtcourse.launch import send_message

            def step():
                if os.environ["RANK"] == "1":
                    raise ValueError("first")
                send_message("up")
                time.sleep(300)

            try:
                launch(step, 3, timeout=None, on_failure="continue", init=False,
                       on_message=lambda rank, _: print(rank, flush=True))
            except KeyboardInterrupt as interrupt:
                print("interrupted", sum("in step()" in note for note in interrupt.__notes__), flush=True)
        """)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert sorted(process.stdout.readline() for _ in range(3)) == ["0\n", "1\n", "2\n"]
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (out, errors) == ("interrupted 2\n", "")
    _, alive = psutil.wait_procs(family, timeout=30)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
