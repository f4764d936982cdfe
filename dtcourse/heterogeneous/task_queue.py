"""Tasks that any rank may do: each rank has a queue, and one whose queue is empty takes from another's.

    def evaluate(split):                                   # on any rank, and alone: no collectives inside
        return accuracy(model, split)

    done = do_tasks(evaluate, splits)                      # on all ranks
    done.results                                           # of all tasks, in their order, on every rank

Nobody has to know how fast a rank is, or how long a task takes: whoever is done takes more (work stealing, Blumofe and
Leiserson 1999). The owner takes from the front of its queue and a thief from the back of the fullest one, so they
seldom meet. The last task ends at most one task of the slowest rank after the ideal time, total work / total speed: so
make tasks small, or say what they cost, and the large ones are begun first.

With launch(..., on_failure="continue") a rank may die. What it had begun is done again by another, and each task has
one result (task_board.py).

What arrives first decides here, so emulated devices need launch(..., clock="wall"). No collective is called; each task
is a few keys in the store, and its result goes through it: keep it below a megabyte, and write what is larger to files.
launch's store is a file, which outlives every rank; it is read no more if a rank is killed in the middle of a write to
it, which takes the longer, the larger the result. Under torchrun the store ends with the rank that holds it, and
nobody tells who has died.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dtcourse.emulation import clock
from dtcourse.heterogeneous.task_board import TaskBoard, TaskLost
from dtcourse.plural import plural


@dataclass(frozen=True)
class TaskFailed:
    """In place of a result: the task raised. It is not tried again.

    error: the exception's type and words;  trace: where
    """

    error: str
    trace: str


@dataclass(frozen=True)
class Done:
    """What became of all tasks.

    results: in the order of the tasks; a TaskFailed or TaskLost where there is none
    by:      the rank that did each; that died last with it, where it was lost
    again:   tasks that were begun by a rank that died, and done by another
    """

    results: list[Any]
    by: list[int]
    again: list[int]

    @property
    def unfinished(self) -> list[int]:
        """The tasks without a result."""
        kinds = (TaskFailed, TaskLost)
        return [task for task, result in enumerate(self.results) if isinstance(result, kinds)]


def do_tasks(
    work: Callable[[Any], Any],
    tasks: Sequence[Any],
    costs: Sequence[float] | None = None,
    name: str = "tasks",
    attempts: int = 2,
) -> Done:
    """Does work(task) once for each task, on whichever rank is free. All ranks of the default group call it.

    work:     has no collective in it, since nobody knows who does what
    tasks:    the same on all ranks. Of lists, numbers and words in them are compared, of other things the types
    costs:    of each, in any unit, where they are known roughly: the large ones come first
    name:     of this call, where there are several in a launch: another one each time
    attempts: ranks that may die of a task before it is given up

    Warns where the other ranks have been awaited for a minute, and says whose task is not done.

    Raises ValueError for a name that was used already, for other tasks than another rank's, for costs that are not one
    finite number for each, and on a virtual clock.
    """
    running = clock.installed()
    if running is not None and not running.arrival_decides:
        raise ValueError(
            'who is free first decides who takes a task, and a virtual clock cannot say it: launch(..., clock="wall")'
        )
    whole = isinstance(attempts, int) and not isinstance(attempts, bool)
    if not whole or attempts < 1 or (costs is not None and len(costs) != len(tasks)):
        raise ValueError(
            f"attempts is 1 or more and each of {plural(len(tasks), 'task')} has a cost; got {attempts!r} and "
            f"{plural(len(costs or ()), 'cost')}"
        )
    if not all(0 <= one < math.inf for one in costs or ()):
        raise ValueError(f"a task's cost is 0 or more, and finite; got {list(costs or ())}")
    board = TaskBoard(len(tasks), costs, name, attempts, _digest(tasks, costs, attempts))
    while (task := board.take()) is not None:
        result: Any
        try:
            result = work(tasks[task])
            packed = pickle.dumps(result)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            packed = pickle.dumps(TaskFailed(said, traceback.format_exc()))
        board.finish(task, packed)
    results, begun = board.summary()
    again = [
        task
        for task, ranks in enumerate(begun)
        if len(ranks) > 1 and not isinstance(results[task], TaskLost)
    ]
    return Done(results, [ranks[-1] for ranks in begun], again)


def _digest(tasks: Sequence[Any], costs: Sequence[float] | None, attempts: int) -> str:
    """Of what all ranks are to pass alike."""
    listed = [_said(task) for task in tasks] if isinstance(tasks, list | tuple | range) else []
    same = repr((listed, None if costs is None else list(costs), attempts))
    return hashlib.sha256(same.encode(errors="surrogatepass")).hexdigest()


def _said(task: Any) -> Any:
    """What is the same of a task on all ranks: words and numbers are, and of other things the type."""
    if isinstance(task, list | tuple):
        return [_said(one) for one in task]
    if isinstance(task, str | bytes | int | float | None):
        return task
    return type(task).__qualname__
