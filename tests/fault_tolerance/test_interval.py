"""How often to save: the formulas against the equation's own solution and against jobs that fail on a virtual clock."""

from __future__ import annotations

import itertools
import math
import random
import re

import pytest
import torch

from dtcourse.fault_tolerance.failing_job import draw_lives, simulate, wasted
from dtcourse.fault_tolerance.interval import (
    LLAMA_3,
    FailingJob,
    best_interval,
    daly,
    expected_waste,
    first_order_waste,
    young,
)
from dtcourse.simulator.hardware import published


def searched(job: FailingJob, shape: float = 1.0) -> float:
    guess = young(job.save, job.mtbf)
    return best_interval(lambda tau: expected_waste(job, tau, shape), guess / 8, guess * 8)


def test_failures_at_scale_are_the_published_ones():
    said = published("fault_tolerance")
    failures, days, devices, hours = re.search(
        r"(\d+) in (\d+) days on ([\d,]+) GPUs -> MTBF ([\d.]+) h", said["llama3"]
    ).groups()
    counted = LLAMA_3.failures, LLAMA_3.days, LLAMA_3.devices
    assert counted == (int(failures), int(days), int(devices.replace(",", "")))
    assert LLAMA_3.mtbf(16_384) / 3600 == pytest.approx(float(hours), abs=0.005)
    assert LLAMA_3.mtbf(8_192) == 2 * LLAMA_3.mtbf(16_384)
    minutes, percent = re.search(
        r"tau=([\d.]+) min.*waste ([\d.]+)%", said["derived_check"]
    ).groups()
    job = FailingJob(save=30, mtbf=LLAMA_3.mtbf(16_384))
    tau = young(job.save, job.mtbf)
    assert tau / 60 == pytest.approx(float(minutes), abs=0.05)
    assert 100 * first_order_waste(job, tau) == pytest.approx(float(percent), abs=0.05)
    assert young(0.1, 5.0) == pytest.approx(1.0)  # the file's own example, in hours


def test_the_best_interval_solves_its_equation_and_is_the_waste_whatever_a_restart_takes():
    for part in (0.001, 0.05, 0.5, 2.0):
        x = searched(FailingJob(save=part, mtbf=1.0))
        assert (1 - x) * math.exp(x + part) == pytest.approx(1, abs=1e-5)
        assert expected_waste(FailingJob(part, 1.0), x) == pytest.approx(x, abs=1e-5)
        assert searched(FailingJob(part, 1.0, restart=0.3)) == pytest.approx(x, rel=1e-4)


def test_dalys_formula_is_the_series_of_that_solution():
    """Its error falls with the fourth power of sqrt(2 save / mtbf): three terms are right. Young's with the second."""
    parts = [0.02 / 4**n for n in range(4)]  # the square root is halved each time
    exact = [_solved(part) for part in parts]
    errors = [abs(daly(part, 1.0) - x) for part, x in zip(parts, exact, strict=True)]
    assert [a / b for a, b in itertools.pairwise(errors)] == pytest.approx([16] * 3, rel=0.1)
    errors = [young(part, 1.0) - x for part, x in zip(parts, exact, strict=True)]
    assert [a / b for a, b in itertools.pairwise(errors)] == pytest.approx([4] * 3, rel=0.1)
    assert daly(2.0, 1.0) == daly(7.0, 1.0) == 1.0


def _solved(part: float) -> float:
    """By bisection: x with x + log(1 - x) = -part."""
    low, high = 0.0, 1.0
    for _ in range(80):
        x = (low + high) / 2
        low, high = (x, high) if x + math.log1p(-x) > -part else (low, x)
    return low


@pytest.mark.parametrize("part", [1e-4, 1e-3, 0.01, 0.02, 0.05])
def test_up_to_a_twentieth_young_and_daly_waste_at_most_a_hundredth_more_than_the_best(part):
    job = FailingJob(save=part, mtbf=1.0)
    least = expected_waste(job, searched(job))
    for tau in (young(part, 1.0), daly(part, 1.0)):
        assert least - 1e-9 <= expected_waste(job, tau) <= 1.01 * least


def test_beyond_and_under_weibull_the_gap_is_larger():
    """Above a twentieth Young saves too seldom. Where failures come in clusters Daly saves too often, and so does Young
    where they are dense."""
    job = FailingJob(save=0.5, mtbf=1.0)
    assert expected_waste(job, young(0.5, 1.0)) > 1.02 * expected_waste(job, searched(job))
    job = FailingJob(save=0.05, mtbf=1.0)
    for formula, shape in ((daly, 0.5), (young, 0.4)):
        least = expected_waste(job, searched(job, shape), shape)
        assert formula(0.05, 1.0) < searched(job, shape)
        assert expected_waste(job, formula(0.05, 1.0), shape) > 1.02 * least


def test_a_step_by_step_run_and_the_sum_over_a_life_say_the_same():
    draw = random.Random(0)
    for _ in range(40):
        save = draw.uniform(0.01, 0.5)
        job = FailingJob(
            save, 1.0, draw.choice([0.0, 0.2]), draw.choice([None, save + draw.uniform(0, 2)])
        )
        interval = draw.uniform(0.05, 1.5)
        lives = draw_lives(1.0, 30, seeds=[draw.randrange(100)], shape=draw.choice([0.5, 1.0, 2.0]))
        run = simulate(job, interval, lives[0].tolist())
        assert run.waste == pytest.approx(wasted(job, interval, lives).item(), abs=1e-12)
        together = run.useful + run.lost + run.saving + run.restarting
        assert together == pytest.approx(lives.sum().item())
        assert run.useful == pytest.approx(run.saves * interval)
        assert run.saves == sum(e.detail["complete"] for e in run.timeline.of(name="write"))


def test_the_order_of_events_by_hand():
    """A save of 1 that is complete after 4, an interval of 2: the second save waits for the first one."""
    run = simulate(FailingJob(1, 100, restart=3, written=4), 2, [11.0, 2.0])
    main = [(e.name, e.start, e.end) for e in run.timeline.of(lane="main")]
    assert main == [
        ("restart", 0, 3),
        ("train", 3, 5),
        ("save", 5, 6),
        ("train", 6, 8),
        ("wait for the save before", 8, 9),
        ("save", 9, 10),
        ("train", 10, 11),
        ("restart", 11, 13),
    ]
    disk = [(e.start, e.end, e.detail["complete"]) for e in run.timeline.of(lane="disk")]
    assert disk == [(5, 9, True), (9, 11, False)]
    assert (run.useful, run.lost, run.saving, run.restarting, run.saves) == (2, 3, 3, 5, 1)


@pytest.mark.parametrize("shape", [0.6, 1.0, 2.0])
@pytest.mark.parametrize("written", [None, 0.2])
def test_the_expected_waste_is_the_mean_of_many_jobs(shape, written):
    job = FailingJob(0.05, 1.0, 0.1, written)
    lives = draw_lives(1.0, 400, seeds=range(200), shape=shape)
    assert lives.mean().item() == pytest.approx(1.0, abs=0.03)
    for interval in (0.1, 0.5):  # at 0.1 a save waits for the one before
        of_seeds = wasted(job, interval, lives)
        error = of_seeds.std().item() / len(of_seeds) ** 0.5
        # A mean of quotients is off by the order of 1/400 of their spread besides.
        assert abs(of_seeds.mean().item() - expected_waste(job, interval, shape)) < 4 * error + 2e-3


def test_a_weibull_of_shape_one_is_the_exponential():
    job = FailingJob(0.05, 1.0, 0.1, 0.4)
    for interval in (0.1, 1.0):
        summed = expected_waste(job, interval, 1 + 1e-12)
        assert summed == pytest.approx(expected_waste(job, interval), abs=1e-9)
    a, b = (draw_lives(2.0, 5, [3], shape) for shape in (1.0, 1 + 1e-12))
    assert torch.allclose(a, b)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: young(0, 1), "save is a number of seconds above 0; got 0"),
        (lambda: daly(1, math.nan), "mtbf is a number of seconds above 0; got nan"),
        (lambda: FailingJob(1, math.inf), "mtbf"),
        (lambda: FailingJob(2, 9, written=1), "written is at least save, 2; got 1"),
        (lambda: FailingJob(2, 9, restart=-1), "restart"),
        (lambda: expected_waste(FailingJob(1, 9), 0), "an interval"),
        (lambda: expected_waste(FailingJob(1, 9), 1, shape=0), "shape is above 0"),
        (lambda: simulate(FailingJob(1, 9), 0, [1.0]), "an interval"),
        (lambda: draw_lives(1.0, 0, [0]), "there is a failure at least; got 1.0, 1.0 and 0"),
        (lambda: LLAMA_3.mtbf(0), "devices is at least 1"),
        (lambda: best_interval(lambda tau: tau, 1, 2), "search in a wider range"),
        (lambda: best_interval(lambda tau: tau, 2, 1), "high above low"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        wrong()
