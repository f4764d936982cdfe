"""Replicas in one process compress as real ranks do; the study measures, goes on where it stopped,
and its file says what it should."""

from __future__ import annotations

import json
import math
from itertools import islice
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from dtcourse import compression, launch
from dtcourse.compression import average, average_ternary, majority_vote
from dtcourse.course.replicas import Digits
from dtcourse.data_parallel import DistributedDataParallel
from dtcourse.models import MLP
from tests.turns import takes_turns

STEPS, P, WIDTH, SAMPLES, BATCH = 20, 4, 12, 60, 3
SIZES = (64, WIDTH, WIDTH, 10)
MAKE = {
    "fp8": compression.Float8,
    "4 bits, by chance": lambda: compression.IntegerQuantizer(4, block=1024, stochastic=True),
    "2 bits, feedback": lambda: compression.IntegerQuantizer(2, block=1024),
    "QSGD, 7 levels": lambda: compression.QSGD(7),
    "sign, feedback, no momentum": compression.ScaledSign,
    "sign, feedback, momentum before": compression.ScaledSign,
    "top 1%, feedback": lambda: compression.TopK(0.01),
    "random 1%, feedback": lambda: compression.RandomK(0.01, unbiased=False),
}
HOOKED = ("deep gradient, 1%", "deep gradient, 1%, no masking", "PowerSGD, rank 1")
OTHERS = (
    "fp32",
    "TernGrad",
    "majority vote, momentum after",
    "Signum, majority vote",
    "1-bit Adam",
)
NAMES = (*MAKE, *HOOKED, *OTHERS)


@pytest.fixture(scope="module")
def script(study):
    return study("less_communication")


# --- replicas are ranks ------------------------------------------------------------------------------------------


def hooked(name, model):
    """The model under DDP with the package's hook."""
    ddp = DistributedDataParallel(model)
    if name.startswith("PowerSGD"):
        ddp.register_comm_hook(compression.PowerSGDState(1), compression.compression_hook)
    else:
        state = compression.DeepGradientState(
            torch.optim.SGD(ddp.parameters(), lr=0.1), ratio=0.01, warm_up_epochs=0,
            factor_masking="no masking" not in name,
        )  # fmt: skip
        ddp.register_comm_hook(state, compression.deep_gradient_hook)
    return ddp


def mean_of(name, x, shapes, kept):
    """The mean over real ranks of x, (n,), double; kept: between steps."""
    if name == "fp32":
        dist.all_reduce(x)
        return x / dist.get_world_size()
    if name == "TernGrad":
        chance = kept.setdefault("chance", compression.TernGradState()._chance)
        return average_ternary(x.float(), [s.numel() for s in shapes], chance=chance)
    if "majority vote" in name:
        return majority_vote(x)
    compressor = kept.setdefault("compressor", MAKE[name]())
    residuals = kept.setdefault(
        "residuals", compression.Residuals() if "feedback" in name else None
    )
    return average(x.float(), compressor, residuals=residuals)


def on_ranks(names, rates):
    """By method: this rank's parameters after each step."""
    rank, p, found = dist.get_rank(), dist.get_world_size(), {}
    digits = Digits.drawn(SAMPLES, 0, torch.float64)
    for name in names:
        model = MLP(SIZES, seed=0).double()
        shapes = [w.shape for w in model.parameters()]
        run = hooked(name, model) if name in HOOKED else model
        adam = None
        if name == "1-bit Adam":
            adam = compression.OneBitAdam(
                model.parameters(), lr=rates[name], warmup_steps=STEPS // 5
            )
        kept, velocity, history = {}, 0.0, []
        batches = digits.batches(digits.pools(1, False).expand(p, -1), BATCH, 1)
        for chosen in islice(batches, STEPS):
            run.zero_grad()
            F.cross_entropy(run(digits.x[chosen[rank]]), digits.y[chosen[rank]]).backward()
            if adam is not None:
                adam.step()
            else:
                g = parameters_to_vector([w.grad for w in model.parameters()])
                if name in HOOKED:
                    m = 0.9 if name.startswith("PowerSGD") else 0.0  # DGC has it in it
                    velocity = step = m * velocity + g
                elif name == "Signum, majority vote" or name.endswith("momentum before"):
                    velocity = 0.9 * velocity + g
                    step = mean_of(name, velocity, shapes, kept).double()
                else:
                    m = 0.0 if name.endswith("no momentum") else 0.9
                    velocity = step = m * velocity + mean_of(name, g, shapes, kept).double()
                old = parameters_to_vector(model.parameters()).detach()
                vector_to_parameters(old - rates[name] * step, model.parameters())
            history.append(parameters_to_vector(model.parameters()).detach().clone())
        found[name] = history
    return found


def test_replicas_in_one_process_are_ranks(script):
    settings = script.Settings(ranks=P, batch=BATCH, steps=STEPS, samples=SAMPLES, width=WIDTH)
    rates = {name: script.METHODS[name].common for name in NAMES}
    run = launch(on_ranks, P, NAMES, rates, timeout=None)
    for name in NAMES:
        lr, method = rates[name], script.METHODS[name]
        ours = islice(script.lanes(method, settings, 0, (lr / 2, lr), torch.float64), 1, STEPS + 1)
        for step, X in enumerate(ours):
            for rank in range(P):
                theirs = run[rank][name][step]
                error = float((X[1] - theirs).abs().max() / theirs.abs().max())
                assert error < 1e-6, f"{name}, step {step}, rank {rank}: off by {error:.1e}"


# --- the study ---------------------------------------------------------------------------------------------------

KEPT = ("fp32", "8 bits", "sign, feedback, no momentum", "deep gradient, 1%", "1-bit Adam")


@pytest.mark.slow
@takes_turns("studies/")
def test_it_measures_stops_and_goes_on(script, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    # its ranks import it by its name
    monkeypatch.syspath_prepend(str(Path(script.__file__).parent))
    path = tmp_path / "results.json"
    settings = script.Settings(ranks=2, steps=32, every=16, samples=80, width=16, scale=2048)
    little = {"names": KEPT, "models": ["ResNet-50"], "links": [1, 100]}
    assert not script.study(path, settings, seeds=1, budget=0.0, **little)
    assert script.study(path, settings, seeds=1, **little)
    first = json.loads(path.read_text())
    assert len(first["runs"]) == 2 * len(KEPT) + 2
    for name in KEPT:
        losses = first["runs"][script.key("steps", name, 0)]["losses"]
        best = first["runs"][script.key("tuned", name)]["best"]
        assert set(losses) == {str(best), str(script.METHODS[name].common)}
        assert all(len(curve) == 3 for curve in losses.values())
    slow, fast = (first["runs"][script.key("seconds", "ResNet-50", g)] for g in (1, 100))
    assert set(slow["step"]) == {"fp32", "8 bits", "deep gradient, 1%"}, (
        "sign's pattern is not asked for"
    )
    for run in (slow, fast):
        assert all(seconds >= run["compute"] for seconds in run["step"].values())
    # 32-bit floats round a ring of 8, beside a computation that is much shorter
    ring = 2 * 7 / 8 * 4 * script.WORKLOADS["ResNet-50"].parameters / (1e9 / 8)
    assert slow["step"]["fp32"] == pytest.approx(ring, rel=0.1)
    assert slow["step"]["8 bits"] == pytest.approx(ring / 4, rel=0.15)
    assert fast["step"]["fp32"] < slow["step"]["fp32"] / 10
    assert script.study(path, settings, seeds=2, **little)
    grown = json.loads(path.read_text())
    assert first["runs"].items() <= grown["runs"].items(), "nothing is measured twice"
    assert len(list(script.summary(grown))) > len(KEPT)


def test_results_of_other_settings_are_not_mixed(script, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"format": script.FORMAT, "settings": {"steps": 1}, "runs": {}}))
    with pytest.raises(ValueError, match="give the same ones to go on"):
        script.load(path, script.Settings())


def test_the_committed_results_are_complete(script):
    results = json.loads(script.RESULTS.read_text())
    settings = script.Settings(**results["settings"])
    assert results["settings"] == script.load(script.RESULTS, script.Settings())["settings"]
    assert results["seeds"] >= 8 and results["methods"] == list(script.METHODS)
    parts = list(script.METHODS), list(script.WORKLOADS), list(script.LINKS), results["runs"]
    assert set(results["runs"]) == {
        name for name, _ in script.jobs(settings, results["seeds"], *parts)
    }
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
