"""A step of many micro-batches is told from two shorter ones: near the whole simulation, and never below what is
proven of it, on which search() stands.
"""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from dtcourse.pipeline_parallel.simulate import Times, simulate
from dtcourse.planner import Layout, step
from dtcourse.planner.pipelines import least_makespan, rank_of
from dtcourse.planner.segments import FORWARD, INPUT, WEIGHT
from tests.planner.test_pipelines import SCHEDULES


class Uneven:
    """A stage whose phases take what is drawn."""

    def __init__(self, drawn):
        self.took = {phase: drawn.uniform(0.5, 2.0) for phase in (FORWARD, INPUT, WEIGHT)}

    def seconds(self, phase):
        return self.took[phase]


@pytest.mark.parametrize(("name", "chunks"), SCHEDULES)
def test_it_is_near_the_whole_and_not_below_its_floor(name, chunks):
    drawn = random.Random(26)
    for case in range(6):
        pp, transfer = drawn.choice((2, 3, 4)), drawn.choice((0.0, 0.3))
        m = pp * drawn.randint(9, 14) + (0 if name == "interleaved" else drawn.randrange(pp))
        layout = Layout(pp=pp, schedule=name, chunks=chunks)
        stages = [Uneven(drawn) for _ in range(layout.stages)]
        s = SimpleNamespace(layout=layout, micro_batches=m)
        found, _ = step._makespan(s, stages, transfer)
        times = [[each.seconds(phase) for each in stages] for phase in (FORWARD, INPUT, WEIGHT)]
        least = least_makespan(name, rank_of(name, pp, chunks), *times, m, transfer)
        assert found >= least * (1 - 1e-12), (case, pp, m)
        whole = simulate(layout.schedule_of(m), Times(*times, transfer=transfer)).makespan
        assert found == pytest.approx(whole, rel=0.03), (case, pp, m)
