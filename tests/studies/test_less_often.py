"""Replicas in one process are ranks; the study measures, goes on where it stopped, and its file says what it should."""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from dtcourse import launch
from dtcourse.asynchronous import (
    AdaComm,
    DiLoCo,
    ElasticAveraging,
    GossipSGD,
    LocalSGD,
    consensus_distance,
    mixing,
)
from dtcourse.course.replicas import Digits, Replicas
from dtcourse.models import MLP
from tests.turns import takes_turns

STEPS, P = 20, 4


@pytest.fixture(scope="module")
def script(study):
    return study("less_often")


@pytest.fixture
def importable(script, monkeypatch):
    """Its ranks import it by its name."""
    monkeypatch.syspath_prepend(str(Path(script.__file__).parent))


# --- replicas are ranks ------------------------------------------------------------------------------------------


def optimizer_of(name, model, lr):
    """The method as dtcourse.asynchronous has it."""
    momentum = 0.9 if "momentum" in name else 0.0
    outer = [float(word) for word in name.partition("outer ")[2].split()]
    sgd = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    adamw = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.999), weight_decay=0.01)
    graphs = {
        "ring": mixing.ring,
        "exponential": mixing.exponential,
        "one peer": mixing.one_peer_exponential,
    }
    period = int(name.split("H = ")[1].split(",")[0]) if "H = " in name else None
    match name.split(", ")[0]:
        case "synchronous" if "AdamW" in name:
            return LocalSGD(model, adamw, 1, synchronous_steps=STEPS)
        case "synchronous":
            return LocalSGD(model, sgd, 1, average_state=True)
        case "never":
            return LocalSGD(model, sgd, 1000)
        case "local":
            return LocalSGD(model, sgd, period, average_state=name.endswith("averaged"))
        case "post-local":
            return LocalSGD(model, sgd, period, synchronous_steps=STEPS // 2)
        case "AdaComm":
            return LocalSGD(model, sgd, 32)
        case "EASGD":
            return ElasticAveraging(model, sgd, period)
        case "gossip":
            return GossipSGD(model, sgd, graphs[name.split(", ")[1]](dist.get_world_size()))
        case "local AdamW":
            return LocalSGD(model, adamw, period)
        case "DiLoCo":
            return DiLoCo(model, adamw, period, outer_lr=outer[0], outer_momentum=outer[1])
    raise AssertionError(name)


def on_ranks(methods, factors, sizes, samples, batch):
    """By method: this rank's parameters after each step, what one would keep,
    and how far apart the ranks are at the end."""
    rank, p, found = dist.get_rank(), dist.get_world_size(), {}
    digits = Digits.drawn(samples, 0, torch.float64)
    for name, lr, deal in methods:
        model = MLP(sizes, seed=0).double()
        optimizer = optimizer_of(name, model, lr)
        adacomm = AdaComm(optimizer, STEPS // 8) if name.startswith("AdaComm") else None
        history = []
        batches = digits.batches(digits.pools(p, deal == "by class"), batch, 1)
        for factor, chosen in zip(factors[name], islice(batches, STEPS), strict=True):
            for group in optimizer.param_groups:
                group["lr"] = lr * factor
            optimizer.zero_grad()
            loss = F.cross_entropy(model(digits.x[chosen[rank]]), digits.y[chosen[rank]])
            loss.backward()
            optimizer.step()
            if adacomm:
                adacomm.step(loss)
            history.append(parameters_to_vector(model.parameters()).detach().clone())
        kept = None
        if isinstance(optimizer, ElasticAveraging):
            center = optimizer.center_parameters()
            kept = torch.cat([center[name].flatten() for name, _ in model.named_parameters()])
        found[name, deal] = history, kept, consensus_distance(model)
    return found


def test_replicas_in_one_process_are_ranks(script):
    # AdaComm's choices come by the clock in the study, where a meeting takes time, and by steps in the package.
    settings = script.Settings(ranks=P, batch=3, steps=STEPS, samples=50, width=6, averaging=0.0)
    sizes = (64, settings.width, settings.width, 10)
    methods = [
        (name, script.COMMON[method.family], script.DEALS[i % 2])
        for i, (name, method) in enumerate(script.METHODS.items())
    ]
    factors = {
        name: [method.factor(step, settings) for step in range(STEPS)]
        for name, method in script.METHODS.items()
    }
    assert factors["post-local, H = 16, decayed"] == [1] * 10 + [0.1] * 5 + [0.1**2] * 5
    run = launch(
        on_ranks, P, methods, factors, sizes, settings.samples, settings.batch, timeout=None
    )
    for name, lr, deal in methods:
        rates = (lr / 2, lr)
        ours = script.lanes(script.METHODS[name], settings, 0, deal, rates, torch.float64)
        first, X = next(ours)
        assert X.shape[:2] == (2, P)
        for step, (_, X) in enumerate(islice(ours, STEPS)):
            theirs = torch.stack([run[rank][name, deal][0][step] for rank in range(P)])
            error = float((X[1] - theirs).abs().max() / theirs.abs().max())
            assert error < 1e-12, f"{name}, {deal}, step {step}: off by {error:.1e}"
        _, center, apart = run[0][name, deal]
        kept = X[1].mean(0) if center is None else center
        assert torch.allclose(first.kept(X)[1], kept, rtol=1e-12, atol=1e-14), name
        mine = (X - script.mean(X)).square().sum(2).mean(1).sqrt()
        assert float(mine[1]) == pytest.approx(apart, rel=1e-9, abs=1e-12), name


def test_replicas_have_the_gradients_of_the_model():
    sizes, model = (64, 7, 5, 10), MLP((64, 7, 5, 10), seed=3).double()
    replicas, digits = Replicas(sizes), Digits.drawn(30, 0, torch.float64)
    X = replicas.start(3, torch.float64).expand(2, -1)
    chosen = torch.tensor([[0, 1, 2], [3, 4, 4]])
    G, losses = replicas.gradients(X, digits.x[chosen], digits.y[chosen])
    for rank in range(2):
        model.zero_grad()
        loss = F.cross_entropy(model(digits.x[chosen[rank]]), digits.y[chosen[rank]])
        loss.backward()
        right = parameters_to_vector([p.grad for p in model.parameters()])
        assert float(losses[rank]) == pytest.approx(float(loss.detach()), rel=1e-12)
        assert torch.allclose(G[rank], right, rtol=1e-12, atol=1e-14)


def test_digits_dealt_by_class():
    digits = Digits.drawn(100, 0)
    pools = digits.pools(8, by_class=True)
    assert pools.shape == (8, 12) and len(pools.unique()) == 96
    assert all(len(digits.y[pool].unique()) <= 3 for pool in pools)
    assert all(len(digits.y[pool].unique()) >= 4 for pool in digits.pools(8, by_class=False))
    first = next(digits.batches(pools, 5, seed=0))
    assert all(
        set(batch.tolist()) <= set(pool.tolist()) for batch, pool in zip(first, pools, strict=True)
    )
    assert len(digits.y_rest) + 100 == 1438


# --- the study ---------------------------------------------------------------------------------------------------

KEPT = [
    "synchronous",
    "local, H = 4",
    "never",
    "EASGD, H = 4",
    "gossip, ring",
    "AdaComm, from H = 32",
]


@pytest.mark.slow
@pytest.mark.usefixtures("importable")
@takes_turns("studies/")
def test_it_measures_stops_and_goes_on(script, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(script, "PACES", {"equal": (10,), "one slow": (10,)})
    path = tmp_path / "results.json"
    settings = script.Settings(
        ranks=3, batch=4, steps=16, every=4, tuning=1, samples=80, width=16, scale=65536, timed=4
    )
    little = {"names": KEPT, "models": ["ResNet-50"], "links": [10]}
    assert not script.study(path, settings, seeds=1, budget=0.0, **little)
    assert script.study(path, settings, seeds=1, **little)
    first = json.loads(path.read_text())
    assert len(first["runs"]) == 4 * len(KEPT) + 2
    for deal in script.DEALS:
        for name in KEPT:
            run = first["runs"][script.key("steps", deal, name, 0)]
            best = first["runs"][script.key("tuned", deal, name)]["best"]
            rates = {str(best), str(script.COMMON["SGD"])}
            assert set(run["losses"]) == set(run["own"]) == set(run["apart"]) == rates
            assert all(len(losses) == 5 for losses in run["losses"].values())
            for meetings in run["meetings"].values():
                assert meetings == {
                    "synchronous": [0, 4, 8, 12, 16], "local, H = 4": [0, 1, 2, 3, 4], "EASGD, H = 4": [0, 0, 1, 2, 3]
                }.get(name, [0, 0, 0, 0, 0])  # fmt: skip
    equal, slow = (
        first["runs"][script.key("seconds", "ResNet-50", 10, pace)]
        for pace in ("equal", "one slow")
    )
    assert set(equal["step"]) == {"synchronous", "local, H = 4", "gossip, ring"}
    # A ring of 3 moves 4/3 of 32-bit floats, once in four steps.
    ring = 4 / 3 * 4 * script.WORKLOADS["ResNet-50"].parameters / (10e9 / 8)
    assert equal["step"]["local, H = 4"] == pytest.approx(equal["compute"] + ring / 4, rel=0.15)
    for name, seconds in equal["step"].items():
        assert slow["step"][name] >= max(seconds, 2 * equal["compute"])
    assert script.study(path, settings, seeds=2, **little)
    grown = json.loads(path.read_text())
    assert first["runs"].items() <= grown["runs"].items(), "nothing is measured twice"
    assert len(list(script.summary(grown))) >= 2 * len(KEPT)


def test_a_meeting_takes_time_and_adacomm_chooses_by_the_clock(script):
    """Steps take 1, meetings 5; from the 20th moment on it may choose, where it meets."""
    rule, X = script.Adaptive(4, interval=20, averaging=5.0), torch.zeros(1, 2, 3)
    for _ in range(12):
        X = rule.step(X, torch.zeros_like(X), torch.ones(1, 1, 1), torch.ones(1, 2))
    # It meets at moments 9, 18 and 27. By the third it is due; a loss that does not fall halves the period.
    assert rule.meetings == [3] and rule.periods == [2] and rule.due == [47]


def test_what_is_slow(script):
    assert script.slower("equal", 3, 5).tolist() == [[1.0] * 3] * 5
    assert script.slower("one slow", 3, 2).tolist() == [[2.0, 1.0, 1.0]] * 2
    chance = script.slower("by chance", 8, 4000)
    assert float(chance.min()) >= 1 and float(chance.mean()) == pytest.approx(1.3, abs=0.02)


def test_the_committed_results_are_complete(script):
    results = json.loads(script.RESULTS.read_text())
    settings = script.Settings(**results["settings"])
    assert results["settings"] == script.load(script.RESULTS, script.Settings())["settings"]
    assert results["seeds"] >= 8 and results["methods"] == list(script.METHODS)
    names = [
        name
        for name, _ in script.jobs(
            settings,
            results["seeds"],
            list(script.METHODS),
            list(script.MODELS),
            list(script.LINKS),
            results["runs"],
        )
    ]
    assert list(results["runs"]) == names
    looks = settings.steps // settings.every + 1
    for name, run in results["runs"].items():
        if name.startswith("tuned"):
            rates = [float(lr) for lr in run["ends"]]
            assert rates[0] < run["best"] < rates[-1], f"{name}: the best lies at the grid's edge"
        elif name.startswith("steps"):
            assert all(len(losses) == looks for losses in run["losses"].values())
            assert all(math.isfinite(losses[0]) for losses in run["losses"].values())
        else:
            assert set(run["step"]) == set(script.TIMED)
    assert script.RESULTS.stat().st_size < 800_000
