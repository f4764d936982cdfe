"""Tasks from queues: each done once, near the ideal time, though ranks are unequal, raise or die."""

from __future__ import annotations

import os
import pickle
import signal
import time
import warnings

import pytest
import torch.distributed as dist

from dtcourse import emulation, launch
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.heterogeneous import TaskFailed, TaskLost, do_tasks, task_board
from dtcourse.launch import RankFailure, send_message

SECONDS = 0.02  # of a task of cost 1 on a fast rank


class Begun:
    """Which rank has begun which task, in the order in which it was told."""

    def __init__(self):
        self.tasks = []

    def __call__(self, rank, message):
        if not isinstance(message, RankFailure):
            self.tasks.append((message, rank))


# --- each once, near the ideal --------------------------------------------------------------------------------------


def unequal():
    rank = dist.get_rank()

    def work(task):
        emulation.sleep(SECONDS * (3 if rank == 1 else 1))
        return task**2, rank

    dist.barrier()
    began = emulation.now()
    done = do_tasks(work, range(160))
    return done, emulation.now() - began


@pytest.mark.timing
def test_within_a_tenth_of_the_ideal_time_where_one_rank_is_three_times_slower():
    # With a device, launch measures what the machine adds, and emulates all of it more slowly where that is too much.
    run = launch(unequal, 4, devices=EmulatedDevice(), clock="wall")
    done = run[0][0]
    assert all(found == done for found, _ in run), "all ranks know all results"
    assert [square for square, _ in done.results] == [task**2 for task in range(160)]
    assert [rank for _, rank in done.results] == done.by and not done.again
    assert done.by.count(0) > 2 * done.by.count(1) > 0
    assert max(seconds for _, seconds in run) < 1.1 * 160 * SECONDS / (3 + 1 / 3)


def with_costs(costs):
    dist.barrier()
    return do_tasks(lambda task: send_message(task) or time.sleep(0.01), range(20), costs).by


def test_large_tasks_are_begun_first():
    begun = Begun()
    costs = [float(task % 7) for task in range(20)]
    run = launch(with_costs, 2, costs, on_message=begun)
    assert sorted(task for task, _ in begun.tasks) == list(range(20)), "each once"
    order = sorted(range(20), key=lambda task: -costs[task])
    for rank in range(2):
        own = [task for task, who in begun.tasks if who == rank and task in order[rank::2]]
        assert own[0] == order[rank], "from the front of its queue"
        assert own == [task for task in order[rank::2] if task in own]
        stolen = [task for task, who in begun.tasks if who == rank and task not in own]
        other = [task for task in order[::-1] if task in stolen]
        assert stolen == other, "and from the back of the other's"
        assert all(run[0][task] == rank for task in (*own, *stolen))


# --- ranks that die -----------------------------------------------------------------------------------------------


def ranks_of(run):
    return {rank for rank, one in enumerate(run) if isinstance(one, RankFailure)}


def dying(deadly, number=24, attempts=2):
    """deadly: {task: ranks that it kills}; None: all of them."""
    rank = dist.get_rank()

    def work(task):
        send_message(task)
        time.sleep(0.005)
        ranks = deadly.get(task, ())
        if ranks is None or rank in ranks:
            os.kill(os.getpid(), signal.SIGKILL)
        if task == 5:
            raise ZeroDivisionError("task five")
        return task + 100

    return do_tasks(work, range(number), attempts=attempts)


def test_what_a_dead_rank_had_begun_is_done_again_by_another():
    """Task 0 is the first of rank 0's queue, and kills that rank; rank 0's other tasks are stolen."""
    begun = Begun()
    run = launch(dying, 3, {0: [0]}, on_failure="continue", on_message=begun)
    assert isinstance(run[0], RankFailure) and ranks_of(run) == {0}
    for done in (run[1], run[2]):
        assert done == run[1]
        expected = [task + 100 for task in range(24)]
        assert done.results[:5] + done.results[6:] == expected[:5] + expected[6:]
        assert done.again == [0] and done.by[0] in (1, 2) and done.unfinished == [5]
        failed = done.results[5]
        assert isinstance(failed, TaskFailed) and failed.error == "ZeroDivisionError: task five"
        assert "raise ZeroDivisionError" in failed.trace
    again = sorted(task for task, _ in begun.tasks)
    assert again == sorted([*range(24), 0]), "each of the others once"


def test_a_task_that_kills_whoever_does_it_is_given_up():
    run = launch(dying, 4, {0: None}, on_failure="continue")
    left = [one for one in run if not isinstance(one, RankFailure)]
    assert len(left) == 2
    for done in left:
        lost = done.results[0]
        assert isinstance(lost, TaskLost) and lost.ranks[0] == 0 and len(lost.ranks) == 2
        assert set(lost.ranks) == ranks_of(run) and done.unfinished == [0, 5]
        assert done.again == [] and done.results[23] == 123


# --- mistakes -------------------------------------------------------------------------------------------------------


def mistakes():
    said = []
    rank = dist.get_rank()
    few = do_tasks(lambda task: task, ["a"], name="one")
    none = do_tasks(lambda task: task, [], name="none")
    for act in (
        lambda: do_tasks(str, ["a"], name="one"),
        lambda: do_tasks(str, ["a"], costs=[1, 2], name="two"),
        lambda: do_tasks(str, ["a"], attempts=0, name="three"),
        lambda: do_tasks(str, ["a"], costs=[float("nan")], name="four"),
        lambda: do_tasks(str, ["a"], attempts=True, name="four"),
    ):
        try:
            act()
        except ValueError as error:
            said.append(str(error))
    unpicklable = do_tasks(lambda task: lambda: task, ["a"], name="five")
    dist.barrier()
    if rank == 0:
        do_tasks(str, [], name="others")
        do_tasks(str, ["a"], name="words")
    dist.barrier()
    for name, tasks in (("others", ["a", "b"]), ("words", ["b"])) if rank == 1 else ():
        try:
            do_tasks(str, tasks, name=name)
        except ValueError as error:
            said.append(str(error))
    return few.results, none.results, unpicklable.results[0], said, twice(), awaited()


def twice():
    """A task's result that comes when it has one: the task was under way as its rank was thought dead."""
    board = task_board.TaskBoard(1, None, f"twice {dist.get_rank()}", 2, "the same")
    for result in ("first", "second"):
        board.finish(0, pickle.dumps(result))
    return board.summary()[0]


def awaited():
    """What is said where a rank takes long for its task."""
    before, task_board.LONG = task_board.LONG, 0.1
    dist.barrier()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        do_tasks(time.sleep, [0.02, 0.6], name="awaited")
    task_board.LONG = before
    return [str(one.message) for one in caught]


def test_mistakes_are_said():
    run = launch(mistakes, 2)
    for few, none, unpicklable, said, result, _ in run:
        assert few == ["a"] and none == [] and result == ["first"]
        assert isinstance(unpicklable, TaskFailed) and "pickle" in unpicklable.error
        assert said[0].startswith("this rank has done tasks named 'one' already")
        assert "1 task has a cost; got 2 and 2 costs" in said[1]
        assert "attempts is 1 or more" in said[2]
        assert said[3] == "a task's cost is 0 or more, and finite; got [nan]"
        assert "attempts is 1 or more" in said[4] and "got True" in said[4]
    assert run[1][3][5].startswith("rank 1 has 2 tasks, and another one has 0, or others")
    assert run[1][3][6].startswith("rank 1 has 1 task, and another one has 1, or others")
    assert any("task 1 of rank" in one for found in run for one in found[5])


def on_a_virtual_clock():
    with pytest.raises(ValueError, match='clock="wall"'):
        do_tasks(str, ["a"])
    return True


def test_a_virtual_clock_is_refused():
    assert (
        list(launch(on_a_virtual_clock, 2, network=EmulatedNetwork(), clock="virtual"))
        == [True] * 2
    )
