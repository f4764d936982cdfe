"""Unequal ranks: work in proportion to measured speed, so that nobody waits for the slowest.

    model = WeightedDataParallel(model)
    balance = Balance(total=256)                        # of each step's batch; at first equal shares
    for x, y in batches:                                # the whole batch; a rank reads its own samples alone
        mine = balance.of(len(x))                       # the last batch may be smaller
        with model.step(len(mine)):
            if mine:                                    # with least=0 there may be nothing to do
                model.weigh(loss(model(x[mine]), y[mine])).backward()
        optimizer.step()
        balance.after(model.seconds, len(mine))         # shares follow measured speed

In the order in which to read them:

    shares.py      a batch divided in proportion to speed, within each rank's memory
    weighted.py    the gradient of the whole batch, though ranks have other numbers of samples
    own_work.py    one rank's part of such a step: what it weighed, sent, and how long it worked
    fitting.py     models and hooks that no weight makes right, which are refused
    capability.py  seconds per sample, measured, and samples that fit; both known to all ranks
    hysteresis.py  when a move is worth it, and when it is undone
    balance.py     shares that follow speed, and do not flap
    task_board.py  what ranks write of their tasks, which outlives them
    task_queue.py  tasks that any rank may do, though some die

A step takes about ideal time + messages + the slowest rank's optimizer. The last of these no share relieves: a rank
three times slower takes three times as long for it, whatever its share. So take a batch whose work is much more.

What goes together with WeightedDataParallel:

    losses that are a mean over samples or tokens          yes; say tokens in `step` where they are what is counted
    other losses (contrastive, weighted by class)          not seen: the mean over ranks is not the whole batch's
    modules that make a loss (a mixture's gates)           refused
    gradient accumulation, no_sync                         yes: a step averages once
    loss scaling, half-precision hooks                     yes
    compression by size (TopK, PowerSGDState)              yes; what it leaves out is of weighted gradients
    votes by sign (MajorityVote)                           refused
    SyncBatchNorm over the wrapper's ranks                 yes, one forward in a step; no seconds on a real clock
    other batch normalisation                              refused, but for running statistics
    tensor and sequence parallelism, over the data axis    yes
    pipelines, sharding and experts of the same module     refused
"""

from dtcourse.heterogeneous.balance import Balance
from dtcourse.heterogeneous.capability import (
    Capability,
    Meter,
    limits_of_all_ranks,
    measured,
    of_all_ranks,
)
from dtcourse.heterogeneous.hysteresis import Hysteresis
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
    "limits_of_all_ranks",
    "measured",
    "of_all_ranks",
    "places",
    "proportional_shares",
    "samples_that_fit",
    "step_seconds",
]
