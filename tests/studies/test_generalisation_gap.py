"""The study's script on a tiny setting: it measures, goes on where it stopped, and its file says what it should."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tests.turns import takes_turns

RUN = {"lr", "steps", "diverged", "seconds", "train_loss", "train_accuracy"}


@pytest.fixture(scope="module")
def script(study):
    return study("generalisation_gap")


@pytest.fixture
def tiny(script, monkeypatch):
    """Grids of one rate, one large batch, few samples."""
    monkeypatch.setattr(script, "GRIDS", {name: (lr, 0) for name, (lr, _) in script.GRIDS.items()})
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    return script.Settings(
        samples=10, digit_epochs=1, tokens=32 * 8, text_epochs=1, width=8, tuning_seeds=1
    )


def check_file(results: dict, script, seeds: int) -> None:
    """What a reader of the file may rely on."""
    assert results["format"] == 1
    assert {"what", "settings", "date", "machine", "versions", "seeds", "seconds"} <= set(results)
    assert results["versions"]["torch"]
    assert results["machine"]["cores"] >= 1
    for name in ("digits", "text"):
        small, large = script.batches(name, script.Settings(**results["settings"]))
        wanted = [("small batch", small)] + [(m.name, b) for b in large for m in script.SWEEP]
        wanted += [(m.name, large[-1]) for m in script.REPAIRS[name]]
        for method, batch in wanted:
            for seed in range(seeds):
                run = results["runs"][script.key(name, method, batch, seed)]
                assert set(run) == RUN | {"test_loss", "test_accuracy"}
                assert run["diverged"] or math.isfinite(run["test_loss"])
    for key, run in results["runs"].items():
        assert ("validation_loss" in run) == key.startswith("tuning"), (
            "tuning never sees the test set"
        )


@takes_turns("studies/")
def test_it_measures_stops_and_goes_on(script, tiny, tmp_path, capsys):
    path = tmp_path / "deep" / "results.json"
    assert not script.study(path, tiny, ["digits", "text"], seeds=1, budget=0.0)
    started = 0
    original = script.measure

    def counting(*args):
        nonlocal started
        started += 1
        return original(*args)

    script.measure = counting
    try:
        assert script.study(path, tiny, ["digits", "text"], seeds=1)
        first, whole = json.loads(path.read_text()), started
        assert started == len(first["runs"]), "every run once"
        assert script.study(path, tiny, ["digits", "text"], seeds=1)
        assert started == whole, "nothing is measured twice"
        assert script.study(path, tiny, ["digits"], seeds=2)
        assert started > whole
    finally:
        script.measure = original
    check_file(first, script, 1)
    grown = json.loads(path.read_text())["runs"]
    assert first["runs"].items() <= grown.items()
    assert not list(path.parent.glob("*.part"))
    lines = list(script.summary(json.loads(path.read_text()), "digits"))
    assert any("small batch" in line and "difference +0.0000" in line for line in lines)
    runs = json.loads(path.read_text())
    runs["runs"][script.key("digits", "linear rule", 10, 0)]["lr"] = (
        0.5  # measured with another grid
    )
    script.results_file.save(runs, path, 2)
    assert script.study(path, tiny, ["digits"], seeds=2)
    assert json.loads(path.read_text())["runs"].keys() == grown.keys()
    again = json.loads(path.read_text())["runs"][script.key("digits", "linear rule", 10, 0)]
    assert again["lr"] != 0.5, "measured again"
    other = script.Settings(samples=20)
    with pytest.raises(ValueError, match="another --out"):
        script.study(path, other, ["digits"], seeds=1)


def test_a_run_depends_on_its_seed_alone(script, tiny):
    """So that a study in pieces is the study in one."""
    method = script.Method("x", "same")
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(runs))  # whatever else the process has done
        run = script.measure(tiny, "digits", method, 10, 5, 0.01, seed)
        runs.append({k: v for k, v in run.items() if k != "seconds"})
    assert runs[0] == runs[1] != runs[2]


def test_divergence_is_told_and_not_hidden(script, tiny):
    run = script.measure(tiny, "digits", script.Method("x", "same"), 5, 5, 1e30, 0)
    assert run["diverged"]
    assert run["test_loss"] is None


def test_ghost_batch_norm_is_batch_norm_of_each_group(script):
    ghost = script.GhostBatchNorm(3)
    ghost.ghost = 4
    x = torch.randn(8, 3, 2, 2)
    plain = [torch.nn.BatchNorm2d(3) for _ in range(2)]
    assert torch.allclose(
        ghost(x), torch.cat([bn(part) for bn, part in zip(plain, x.split(4), strict=True)])
    )
    assert not torch.allclose(ghost(x), torch.nn.BatchNorm2d(3)(x))
    ghost.eval()
    assert ghost(x).shape == x.shape


def test_the_rates(script):
    assert script.grid("SGD")[3] == 0.03
    assert len(script.grid("SGD")) == 7
    settings = script.Settings(samples=7, tuning_seeds=1)
    with pytest.raises(ValueError, match="7 samples hold no batch of 10"):
        script.batches("digits", settings)
    results = {"settings": {"tuning_seeds": 1}, "runs": {}}
    for lr in script.grid("SGD"):
        loss = abs(math.log(lr / 0.095))
        results["runs"][script.key("tuning", "digits", "SGD", 5, lr, 1000)] = {
            "validation_loss": loss,
            "diverged": lr > 0.9,
        }
    small = script.SMALLEST["digits"]
    rates = {m.rule: script.rate(results, "digits", m, 4 * small) for m in script.SWEEP}
    assert rates == pytest.approx({"same": 0.095, "square root": 0.19, "linear": 0.38})


def test_the_committed_results_are_complete(script):
    results = json.loads(script.RESULTS.read_text())
    check_file(results, script, results["seeds"])
    assert results["seeds"] >= 5
    assert results["settings"] == script.load(script.RESULTS, script.Settings())["settings"]


def test_the_best_rates_lie_inside_their_grids(script):
    """Else the best one may lie outside, and a method has lost by its grid."""
    results = json.loads(script.RESULTS.read_text())
    settings = script.Settings(**results["settings"])
    for name in ("digits", "text"):
        small, large = script.batches(name, settings)
        methods = [(script.SMALL, small)]
        methods += [(m, large[-1]) for m in script.REPAIRS[name] if m.rule == "tuned"]
        for method, batch in methods:
            rates = script.grid(method.optimizer or script.OWN[name])
            assert rates[0] < script.rate(results, name, method, batch) < rates[-1], (name, method)


def test_a_method_without_a_warm_up_is_tuned_without_one(script):
    """The rival in its best form: its learning rate is its own."""
    results = {"settings": {"tuning_seeds": 1}, "runs": {}}
    for warmup, best in ((True, 0.3), (False, 0.03)):
        for lr in script.grid("SGD"):
            name = script.key(script.tuning(warmup), "digits", "SGD", 200, lr, 1000)
            loss = abs(math.log(lr / best))
            results["runs"][name] = {"validation_loss": loss, "diverged": False}
    for warmup, best in ((True, 0.3), (False, 0.03)):
        method = script.Method("x", "tuned", warmup=warmup)
        assert script.rate(results, "digits", method, 200) == best
