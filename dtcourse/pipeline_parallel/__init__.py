"""Pipeline parallelism: a model split by layers over ranks, a batch split into micro-batches, and who does what when.

Read in this order:

naive.py           1F1B on one page: forwards, backwards, sends and receives written out
actions.py         a schedule is data: for each rank, a list of actions
schedules.py       sequential, GPipe, 1F1B, interleaved 1F1B, breadth-first, PipeDream
zero_bubble.py     ZB-H1, ZB-H2, ZB-V, DualPipe-V: the backward in two halves
validate.py        is it complete, does it end, does it stay within its memory
simulate.py        when each action runs: makespan, bubbles, peak memory
layers.py          a model as a list of layers
balance.py         which layers go into which stage
stages.py          a rank's stages of such a list, their names in the whole model, and weights they share with others
auxiliary.py       losses that are made inside the stages: those of experts' gates
copies.py          of a tied weight on several ranks: one gradient for all
split_backward.py  the two halves, for an unchanged model: input now, weights later
headers.py         what is said of a tensor before it comes
posting.py         the one order in which all ranks post their messages
refusals.py        how ranks hear that another one cannot go on
messages.py        activations and gradients on their way
layer_costs.py     what a layer costs, counted or measured
recompute.py       a forward that is run twice, and leaves its traces once
batch.py           one micro-batch's forward and backward in a stage, and what is kept in between
performer.py       what a rank of a pipeline has: stages, messages, and proof that they fit the schedule
wrapped.py         stages in a data-parallel wrapper: what is refused, and what to do instead
replicas.py        ranks with the same stages: each stage's gradients averaged from its last backward on
engine.py          performs any schedule on ranks; weights are updated after it
without_flush.py   what weights that change after each backward cannot have
pipedream.py       the engine without a flush: updates after each backward, versions of weights
recorded.py        a run's events, step by step, beside the simulator's: cost and bubble
pairs.py           a forward and a backward at once: what DualPipe's order is made for
search.py          the zero-bubble paper's heuristic: a schedule for given times and memory
playing.py         its decisions: one step played through in the order of time
explore.py         schedules, times and memory to play with

What a step needs is here, too:

    from dtcourse.pipeline_parallel import Pipeline, balance, layers_of, one_f_one_b, split

but what has the name of its file (layer_costs, schedules.pipedream), and recorded.py's short names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dtcourse.pipeline_parallel.actions import Action, Schedule
from dtcourse.pipeline_parallel.balance import balance
from dtcourse.pipeline_parallel.schedules import (
    breadth_first,
    gpipe,
    interleaved_1f1b,
    one_f_one_b,
    sequential,
)
from dtcourse.pipeline_parallel.search import search

# It says how a schedule is drawn (dtcourse.events.timeline_of), wherever the schedule is from.
from dtcourse.pipeline_parallel.simulate import Memory, Simulation, Times, simulate
from dtcourse.pipeline_parallel.validate import ScheduleError, validate
from dtcourse.pipeline_parallel.zero_bubble import dualpipe_v, zb_h1, zb_h2, zb_v

if TYPE_CHECKING:
    from dtcourse.pipeline_parallel.engine import Pipeline
    from dtcourse.pipeline_parallel.layers import layers_of, shared_parameters
    from dtcourse.pipeline_parallel.pipedream import PipeDream
    from dtcourse.pipeline_parallel.refusals import StepRefused
    from dtcourse.pipeline_parallel.stages import Stage, split

__all__ = [
    "Action",
    "Memory",
    "PipeDream",
    "Pipeline",
    "Schedule",
    "ScheduleError",
    "Simulation",
    "Stage",
    "StepRefused",
    "Times",
    "balance",
    "breadth_first",
    "dualpipe_v",
    "gpipe",
    "interleaved_1f1b",
    "layers_of",
    "one_f_one_b",
    "search",
    "sequential",
    "shared_parameters",
    "simulate",
    "split",
    "validate",
    "zb_h1",
    "zb_h2",
    "zb_v",
]

_NEEDS_TORCH = {
    "PipeDream": "pipedream",
    "Pipeline": "engine",
    "Stage": "stages",
    "StepRefused": "refusals",
    "layers_of": "layers",
    "shared_parameters": "layers",
    "split": "stages",
}


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is asked for: schedules are made, simulated and drawn without it."""
    if name in _NEEDS_TORCH:
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_NEEDS_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
