"""Communication scheduling: the same bytes, sent when they cost least time.

In the order in which to read them:

    plan.py               which slice leaves first: a queue by priority, a credit, and what to expect of it
    layer_steps.py        an optimizer's step, one layer at a time
    scheduled_reducer.py  gradients leave slice by slice, and nobody waits at the end of backward
    priority.py           PriorityDataParallel: each layer waits for its own gradient before its next forward
    fusion.py             how many gradients a message should carry: the best bucket size, the best division
    byteps.py             servers beside peers: who sums which part of the gradients
    push_pull.py          the exchange between them
    lazy.py               ranks whose gradient has hardly changed send nothing

Not here: no_sync(), fewer and larger messages by accumulation (data_parallel/ddp.py), and reduction on two levels
(collectives/hierarchical.py).
"""

from dtcourse.communication_scheduling.byteps import push_pull_seconds, shares
from dtcourse.communication_scheduling.fusion import (
    AssignDivision,
    Gradient,
    all_reduce_seconds,
    arrival,
    best_division,
    best_even_size,
    best_size,
    divide,
)
from dtcourse.communication_scheduling.lazy import LazyAggregation, lazy_bytes, lazy_hook
from dtcourse.communication_scheduling.plan import (
    Slice,
    arrivals,
    expected_gain,
    send_order,
    step_seconds,
)
from dtcourse.communication_scheduling.priority import PriorityDataParallel
from dtcourse.communication_scheduling.push_pull import PushPull, push_pull_hook, serve

__all__ = [
    "AssignDivision",
    "Gradient",
    "LazyAggregation",
    "PriorityDataParallel",
    "PushPull",
    "Slice",
    "all_reduce_seconds",
    "arrival",
    "arrivals",
    "best_division",
    "best_even_size",
    "best_size",
    "divide",
    "expected_gain",
    "lazy_bytes",
    "lazy_hook",
    "push_pull_hook",
    "push_pull_seconds",
    "send_order",
    "serve",
    "shares",
    "step_seconds",
]
