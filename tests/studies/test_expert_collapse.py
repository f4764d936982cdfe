"""The study's script on a tiny setting: it measures, goes on where it stopped, and its file says what it should."""

from __future__ import annotations

import json
import math

import pytest
import torch

from tests.turns import takes_turns


@pytest.fixture(scope="module")
def script(study):
    return study("expert_collapse")


@pytest.fixture
def tiny(script, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    return script.Settings(steps=3, window=2, batch=4, length=8, width=8, experts=4, test_blocks=10)


def check_file(results, script):
    """What a reader of the file may rely on."""
    settings = script.Settings(**results["settings"])
    windows = -(-settings.steps // settings.window)
    assert set(results["methods"]) == {method.name for method in script.METHODS}
    assert len(results["runs"]) == len(script.METHODS) * results["seeds"]
    for method in script.METHODS:
        for seed in range(results["seeds"]):
            run = results["runs"][script.key(method, seed)]
            assert len(run["shares"]) == len(run["effective"]) == len(run["dropped"]) == windows
            for shares, effective, dropped in zip(
                run["shares"], run["effective"], run["dropped"], strict=True
            ):
                assert len(shares) == settings.experts
                assert abs(sum(shares) - 1000) <= settings.experts / 2  # each is rounded
                assert 1 <= effective <= settings.experts
                assert 0 <= dropped < 1
            assert math.isfinite(run["test_loss"])
            assert math.isfinite(run["test_loss_dropless"])


@takes_turns("studies/")
def test_it_measures_stops_and_goes_on(script, tiny, tmp_path):
    path = tmp_path / "results.json"
    assert not script.study(path, tiny, seeds=1, budget=0.0)
    assert script.study(path, tiny, seeds=1)
    first = json.loads(path.read_text())
    check_file(first, script)
    assert script.study(path, tiny, seeds=2)
    grown = json.loads(path.read_text())
    check_file(grown, script)
    assert first["runs"].items() <= grown["runs"].items(), "nothing is measured twice"
    lines = list(script.summary(grown))
    assert len(lines) == len(script.METHODS)
    assert "from none" not in lines[0]
    assert all(line.count("from none") == 4 for line in lines[1:])


def test_a_run_depends_on_its_seed_alone(script, tiny):
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(runs))  # whatever else the process has done
        method = next(m for m in script.METHODS if m.gate == "noisy")
        run = script.measure(tiny, method, seed)
        runs.append({k: v for k, v in run.items() if k != "seconds"})
    assert runs[0] == runs[1] != runs[2]


def test_methods_of_a_seed_start_alike(script, tiny):
    models = [script.build(tiny, method, 0)[0] for method in script.METHODS]
    for model in models[1:]:
        for name, value in models[0].state_dict().items():
            assert torch.equal(model.state_dict()[name], value), name


def test_what_is_counted(script, tiny):
    assert script.effective(torch.tensor([0, 7, 0, 0])) == 1.0
    assert script.effective(torch.tensor([5, 5, 5, 5])) == pytest.approx(4.0)
    assert script.effective(torch.tensor([5, 5, 0, 0])) == pytest.approx(2.0)
    assert script.left_out(tiny, torch.tensor([3, 3, 0, 1])) == 1 - 3 / 32
    low, high = script.interval([1.0, 2.0, 3.0])  # Student's t with 2 degrees of freedom: 4.303
    assert (low, high) == pytest.approx((2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5), abs=1e-3)


def test_the_committed_results_are_complete(script):
    results = json.loads(script.RESULTS.read_text())
    check_file(results, script)
    assert results["seeds"] >= 8
    assert results["settings"] == script.load(script.RESULTS, script.Settings())["settings"]
    assert results["methods"] == script.load(script.RESULTS, script.Settings())["methods"]
    assert script.RESULTS.stat().st_size < 300_000
