"""Unequal ranks: work in proportion to measured speed, so that nobody waits for the slowest.

    model = WeightedDataParallel(model)
    balance = Balance(total=256)                        # of each step's batch; at first equal shares
    for x, y in batches:                                # the whole batch; a rank reads its own samples alone
        mine = balance.mine
        with model.step(len(mine)):
            if mine:                                    # with least=0 there may be nothing to do
                model.weigh(loss(model(x[mine]), y[mine])).backward()
        optimizer.step()
        balance.after(model.seconds)                    # shares follow measured speed

In the order in which to read them:

    shares.py      a batch divided in proportion to speed, within each rank's memory
    weighted.py    the gradient of the whole batch, though ranks have other numbers of samples
    capability.py  seconds per sample, measured, and known to all ranks
    balance.py     shares that follow it, and do not flap
    task_board.py  what ranks write of their tasks, which outlives them
    task_queue.py  tasks that any rank may do, though some die
"""

from dtcourse.heterogeneous.balance import Balance, Hysteresis
from dtcourse.heterogeneous.capability import Capability, Meter, measured, of_all_ranks
from dtcourse.heterogeneous.shares import (
    ideal_seconds,
    places,
    proportional_shares,
    samples_that_fit,
    step_seconds,
)
from dtcourse.heterogeneous.task_board import TaskLost
from dtcourse.heterogeneous.task_queue import Done, TaskFailed, do_tasks
from dtcourse.heterogeneous.weighted import WeightedDataParallel

__all__ = [
    "Balance",
    "Capability",
    "Done",
    "Hysteresis",
    "Meter",
    "TaskFailed",
    "TaskLost",
    "WeightedDataParallel",
    "do_tasks",
    "ideal_seconds",
    "measured",
    "of_all_ranks",
    "places",
    "proportional_shares",
    "samples_that_fit",
    "step_seconds",
]
