"""Communication scheduling: the same bytes, sent when they cost least time.

In the order in which to read them:

    plan.py               which slice leaves first: a queue by priority, a credit, and what to expect of it
    layer_steps.py        an optimizer's step, one layer at a time
    scheduled_reducer.py  gradients leave slice by slice, and nobody waits at the end of backward
    priority.py           PriorityDataParallel: each layer waits for its own gradient before its next forward
"""

from dtcourse.communication_scheduling.plan import (
    Slice,
    arrivals,
    expected_gain,
    send_order,
    step_seconds,
)
from dtcourse.communication_scheduling.priority import PriorityDataParallel

__all__ = [
    "PriorityDataParallel",
    "Slice",
    "arrivals",
    "expected_gain",
    "send_order",
    "step_seconds",
]
