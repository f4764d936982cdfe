"""Expert parallelism: the experts of a mixture on many ranks, and tokens that travel to them.

In the order in which to read them:

    exchange.py    dispatch and combine: all-to-alls with uneven splits, in one step or inside nodes and between
    layer.py       expert_parallel: a model's experts given out over the ranks
    scope.py       whose tokens a capacity, a loss or an expert looks at: one rank's, or everybody's
    state.py       the plain model's state from it, and into it
    gradients.py   of experts and of all else: what is summed, and what it is divided by
    clipping.py    their norm, and clipping by it

The mixture itself is dtcourse.models.moe.
"""

from dtcourse.expert_parallel.clipping import clip_grad_norm
from dtcourse.expert_parallel.exchange import combine, dispatch
from dtcourse.expert_parallel.gradients import average_gradients, full_gradients
from dtcourse.expert_parallel.layer import ParallelExperts, expert_parallel
from dtcourse.expert_parallel.scope import AllRanks
from dtcourse.expert_parallel.state import full_state_dict, load_full_state_dict

__all__ = [
    "AllRanks",
    "ParallelExperts",
    "average_gradients",
    "clip_grad_norm",
    "combine",
    "dispatch",
    "expert_parallel",
    "full_gradients",
    "full_state_dict",
    "load_full_state_dict",
]
