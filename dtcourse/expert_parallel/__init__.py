"""Expert parallelism: the experts of a mixture on many ranks, and tokens that travel to them.

In the order in which to read them:

    exchange.py    dispatch and combine: all-to-alls with uneven splits, in one step or inside nodes and between
    layer.py       expert_parallel: a model's experts given out over the ranks
    scope.py       whose tokens a capacity, a loss or an expert looks at: one rank's, or everybody's
    gradients.py   of experts and of all else: what is summed, and what it is divided by

The mixture itself is dtcourse.models.moe.
"""

from dtcourse.expert_parallel.exchange import combine, dispatch
from dtcourse.expert_parallel.gradients import average_gradients, full_gradients, full_state_dict
from dtcourse.expert_parallel.layer import ParallelExperts, expert_parallel
from dtcourse.expert_parallel.scope import AllRanks

__all__ = [
    "AllRanks",
    "ParallelExperts",
    "average_gradients",
    "combine",
    "dispatch",
    "expert_parallel",
    "full_gradients",
    "full_state_dict",
]
