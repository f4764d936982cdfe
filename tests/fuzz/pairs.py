"""Random models under two techniques at once, saved there and loaded on another layout of as many ranks, against one
process: what is drawn, run and compared. How a case is made simpler and printed is in simpler_pairs.py.

Pairs are those that tests/pairs/table.py says work.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from hypothesis import strategies as st

from dtcourse import checkpoint
from dtcourse.models import TransformerConfig
from dtcourse.parameters.whole import full_state_dict
from dtcourse.verify import NotEqual, compare
from tests.fuzz.running import outcomes_of
from tests.pairs.grid import Grid, Task, zeros_of_none
from tests.pairs.grid_training import Alone, Training
from tests.pairs.layouts import Steps
from tests.pairs.table import PAIRS

TOLERANCE = 1e-11
OVER_DATA = (
    "fully_shard",
    "FullyShardedDataParallel",
    "ZeRO-1",
    "ZeRO-2",
    "DistributedDataParallel",
)
AXIS = {"tensor": "tensor", "sequence": "tensor", "expert": "expert", "pipeline": "pipe"}
DRAWN = [
    (p.outer, p.inner)
    for p in PAIRS
    if p.works and p.inner in AXIS and (p.outer in OVER_DATA or p.outer in AXIS)
]
STEPS = 2  # before it is saved; one follows the load


@dataclass(frozen=True)
class Case:
    """source, target: layouts of as many ranks."""

    source: Grid
    target: Grid
    task: Task

    @property
    def ranks(self) -> int:
        return self.source.ranks

    def fits(self) -> bool:
        return all(fits(grid, self.task.config) for grid in (self.source, self.target))

    def __str__(self) -> str:
        return f"{self.source}, then {self.target}"


@dataclass
class Found:
    """Two steps on the source, the whole state after the load, and one step on the target."""

    before: Steps
    loaded: dict[str, torch.Tensor] = field(default_factory=dict)
    after: Steps = field(default_factory=Steps)


def fits(grid: Grid, config: TransformerConfig) -> bool:
    """Whether it can be cut so. What cannot is refused, which tests of its own say."""
    kv, p = config.kv_heads, grid.tensor
    stages = grid.pipe * (2 if grid.schedule == "interleaved" else 1)
    return (
        not config.n_heads % p
        # Rows of heads that two ranks hold alike are not cut again.
        and not (kv % p and (p % kv or grid.outer == "fully_shard"))
        and not config.ff % p
        and not (grid.sequence and config.max_length % p)
        and not (config.experts and config.experts % grid.expert)
        and not (grid.pipe > 1 and stages > config.n_layers + 2)
    )


def grid_of(outer: str, inner: str, shape: tuple[int, int], schedule: str) -> Grid:
    axes = {AXIS[inner]: shape[1], AXIS.get(outer, "data"): shape[0]}
    return Grid(
        **axes,  # type: ignore[arg-type]
        outer=outer if outer in OVER_DATA else "nothing",
        sequence=inner == "sequence",
        expert_first=(outer, inner) == ("tensor", "expert"),
        schedule=schedule,
    )


@st.composite
def cases(draw: st.DrawFn, pair: tuple[str, str], ranks: int) -> Case:
    """Of one pair; its checkpoint is for another one of the same models, or for itself turned over."""
    shapes = [(2, 2)] if ranks == 4 else [(3, 2), (2, 3)]
    schedules = st.sampled_from(["GPipe", "1F1B", "interleaved"])
    unit = 2 if ranks == 4 else 6  # heads, tokens, experts and numbers divide by each axis
    experts = "expert" in pair
    rotary, heads = draw(st.booleans()), unit * draw(st.integers(1, 2))
    config = TransformerConfig(
        vocab=draw(st.integers(5, 31)),
        d_model=heads * draw(st.sampled_from([2, 4])),
        n_layers=draw(st.integers(1, 3)),
        n_heads=heads,
        n_kv_heads=draw(st.sampled_from([None, unit, heads, 1, 2])),
        d_ff=unit * draw(st.integers(1, 3)),
        max_length=unit * draw(st.integers(1, 2)),
        tied=draw(st.booleans()),
        bias=draw(st.booleans()),
        positions="rotary" if rotary else "learned",
        norm=draw(st.sampled_from(["layer", "rms"])),
        mlp=draw(st.sampled_from(["gelu", "swiglu"])),
        experts=unit * draw(st.integers(1, 2)) if experts else 0,
        shared_experts=draw(st.integers(0, 1)) if experts else 0,
        balancing=draw(st.sampled_from([0.0, 0.7])) if experts else 0.0,
    )
    frozen = draw(st.frozensets(st.integers(0, 30), min_size=draw(st.integers(0, 4)), max_size=6))
    source = grid_of(*pair, draw(st.sampled_from(shapes)), draw(schedules))
    others = [one for one in DRAWN if ("expert" in one) == experts]
    target = grid_of(*draw(st.sampled_from(others)), draw(st.sampled_from(shapes)), draw(schedules))
    return fitting(Case(source, target, Task(config, frozen, draw(st.booleans()))))


def fitting(case: Case) -> Case:
    """The same with what does not fit put right."""
    config = case.task.config
    if not case.fits():
        config = replace(config, n_kv_heads=None)
    wide = replace(case, task=replace(case.task, config=config))
    if not wide.fits():
        wide = replace(wide, task=replace(wide.task, config=replace(config, n_layers=4)))
    assert wide.fits(), wide
    return wide


# --- on the ranks -----------------------------------------------------------------------------------------------------


def run(case: Case) -> Found:
    training = Training(case.source, case.task)
    found = Found(training.steps(range(STEPS)))
    with shared_folder() as folder:
        checkpoint.save(folder, training.model, training.optimizer)
        other = Training(case.target, case.task, seed=7)
        checkpoint.load(folder, other.model, other.optimizer)
    found.loaded = full_state_dict(other.model)
    found.after = other.steps([STEPS])
    return found


@contextmanager
def shared_folder() -> Iterator[str]:
    """A new one of the first rank's, until all ranks are at its end."""
    with tempfile.TemporaryDirectory() as mine:
        names = [mine]
        dist.broadcast_object_list(names, src=0)
        yield names[0] + "/saved"
        dist.barrier()


# --- here -------------------------------------------------------------------------------------------------------------


def complaints(cases: list[Case], run: Callable[[Case], Found] = run) -> list[str]:
    """What is wrong with each, "" where it is right. All have as many ranks.

    run: on the ranks; another one for a mistake on purpose
    """
    outcomes = outcomes_of(cases, cases[0].ranks, run=run) if cases else []
    return [complaint(case, of_ranks) for case, of_ranks in zip(cases, outcomes, strict=True)]


def complaint(case: Case, outcomes: list[Any]) -> str:
    errors = [f"rank {rank}: {text}" for rank, text in enumerate(outcomes) if isinstance(text, str)]
    if errors:
        return "\n".join(errors)
    alone = Alone(case.task)
    right = alone.steps([case.source] * STEPS)
    saved = {n: t.clone() for n, t in right.state.items()}
    after = alone.steps([case.target], first=STEPS)
    for rank, found in enumerate(outcomes):
        try:
            differ(case, found.before, right, "before it was saved")
            compare(found.loaded, found.before.state, 0.0, "loaded value")
            compare(found.loaded, saved, TOLERANCE, "loaded value", norm=2)
            differ(case, found.after, after, "after the load")
        except NotEqual as difference:
            return f"rank {rank}: {difference}"
    return ""


def differ(case: Case, mine: Steps, right: Steps, when: str) -> None:
    """Raises NotEqual, with a parameter's name, where they do."""
    pairs = zip(mine.gradients, right.gradients, mine.norms, right.norms, strict=True)
    for step, (found, theirs, norms, right_norms) in enumerate(pairs):
        theirs = zeros_of_none(theirs, found, case.task)
        compare(found, theirs, TOLERANCE, f"gradient {when}, step {step},", norm=2)
        as_tensors = [{"all": torch.tensor(each)} for each in (norms, right_norms)]
        compare(*as_tensors, TOLERANCE, f"norms 1, 2 and inf {when}, step {step},")
    compare(mine.state, right.state, TOLERANCE, f"value {when}", norm=2)
