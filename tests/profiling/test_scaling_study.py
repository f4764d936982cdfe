"""Planted parameters come back: exactly on the virtual clock, and as often as stated where times are noisy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist

from dtcourse import emulation
from dtcourse.collectives.terms import Terms, ring_terms
from dtcourse.emulation import EmulatedNetwork
from dtcourse.profiling.scaling_fits import (
    Bootstrap,
    fit_alpha_beta,
    fit_amdahl,
    fit_gustafson,
)
from dtcourse.profiling.scaling_study import scaling_study

SERIAL, EACH, SAMPLES = 0.2, 0.05, 16  # seconds; seconds per sample
NETWORK = EmulatedNetwork(latency=1e-3, bandwidth=1e6)


def step(samples):
    emulation.sleep(SERIAL + EACH * samples)
    dist.all_reduce(torch.ones(1 << 12))


def test_planted_parameters_come_back_exactly():
    study = scaling_study(
        step, [1, 2, 4], samples=SAMPLES, steps=2, warm_up=0,
        backend="ring", network=NETWORK, clock="virtual", device="cpu",
    )  # fmt: skip
    right = SERIAL / (SERIAL + EACH * SAMPLES)
    planted = [
        (study.amdahl_computing, "serial_fraction", right),
        (study.amdahl_computing, "one_rank", SERIAL + EACH * SAMPLES),
        (study.gustafson_computing, "serial_fraction", right),
        (study.link, "alpha", 1e-3),
        (study.link, "beta", 1e-6),
    ]
    for fit, name, value in planted:
        assert fit[name] == pytest.approx(value, rel=1e-9), name
        low, high = fit.intervals[name]
        assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9), name
        assert fit.misfit < 1e-9
    # Who has only the times takes communication for serial work.
    assert study.amdahl["serial_fraction"] > right + 0.01
    four = study.rows()[-1]
    communication = 6 * 1e-3 + 1.5 * (4 << 12) * 1e-6
    assert four["strong seconds"] == pytest.approx(SERIAL + EACH * 4 + communication)
    assert four["weak efficiency"] == pytest.approx(1 / (1 + communication))
    assert study.alone[4] == pytest.approx([SERIAL + EACH * 64] * 2)
    assert "link: alpha 0.001 (0.001 to 0.001), beta 1e-06" in str(study)


def noisy(seconds, noise, draw, steps=10):
    return {p: each * (1 + noise * draw.standard_normal(steps)) for p, each in seconds.items()}


def test_intervals_hold_the_truth_as_often_as_they_say():
    """250 studies of 2% noise: 95% intervals, whose own count varies by 1.4% (a standard deviation)."""
    draw, ranks, s, alpha, beta = np.random.default_rng(1), (1, 2, 4, 8), 0.1, 1e-3, 1e-6
    n, trials, held = 1 << 14, 250, dict.fromkeys(("amdahl", "gustafson", "alpha", "beta"), 0)
    for trial in range(trials):
        bootstrap = Bootstrap(0.95, 200, seed=trial)
        strong = noisy({p: s + (1 - s) / p for p in ranks}, 0.02, draw)
        weak = noisy(dict.fromkeys(ranks, 1.0), 0.02, draw)
        alone = noisy({p: s + (1 - s) * p for p in ranks}, 0.02, draw)
        paths = {p: ring_terms("all_reduce", n, p) for p in ranks[1:]}
        link = noisy({p: t.latencies * alpha + t.bytes * beta for p, t in paths.items()}, 0.02, draw)  # fmt: skip
        fits = {
            "amdahl": (fit_amdahl(strong, bootstrap), "serial_fraction", s),
            "gustafson": (fit_gustafson(weak, alone, bootstrap), "serial_fraction", s),
        }
        both = fit_alpha_beta([(paths[p], link[p]) for p in paths], bootstrap)
        fits |= {"alpha": (both, "alpha", alpha), "beta": (both, "beta", beta)}
        for name, (fit, value, right) in fits.items():
            low, high = fit.intervals[value]
            held[name] += low <= right <= high
    for name, count in held.items():
        assert 0.91 <= count / trials <= 0.985, (name, count / trials)


def test_what_cannot_be_fitted_is_said():
    assert fit_alpha_beta([(Terms(2, 10), [1.0])]) is None
    assert fit_alpha_beta([(Terms(2, 10), [1.0]), (Terms(4, 20), [2.0])]) is None
    for wrong, said in (
        ({1: [1.0]}, r"2 numbers of ranks or more; got \[1\]"),
        ({1: [1.0], 2: []}, "one or more; got .* for 2 ranks"),
        ({1: [1.0], 2: [-1.0]}, "above 0"),
    ):
        with pytest.raises(ValueError, match=said):
            fit_amdahl(wrong)
    with pytest.raises(ValueError, match=r"not given for \[4\] ranks"):
        fit_gustafson({1: [1.0], 4: [1.0]}, {1: [1.0]})
    with pytest.raises(ValueError, match="resamples 100 or more"):
        Bootstrap(1.5)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ranks": [2, 4]}, r"from one rank to more.*got ranks=\[2, 4\]"),
        ({"samples": 6}, r"samples=6 cannot be shared equally by \[4, 8\] ranks"),
        ({"steps": 1}, "2 steps or more"),
    ],
)
def test_what_cannot_be_studied_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        scaling_study(step, **wrong)
