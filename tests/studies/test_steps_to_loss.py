"""The study's script on a tiny setting: it measures, goes on where it stopped, and its file says what it should."""

from __future__ import annotations

import json
import math

import pytest
import torch


@pytest.fixture(scope="module")
def script(study):
    return study("steps_to_loss")


@pytest.fixture
def tiny(script, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(
        script,
        "GRIDS",
        {
            "SGD": (0.3, 1),
            "Adam": (0.01, 0),
            "Nesterov": (0.1, 0),
            "LARS": (0.5, 0),
            "LAMB": (0.02, 0),
        },
    )
    return script.Settings(
        target=2.2, smallest=16, largest=64, base=32, most=200, tuning_seeds=1
    )  # fmt: skip


def check_file(results, script):
    """What a reader of the file may rely on."""
    settings = script.Settings(**results["settings"])
    sizes = script.batches(settings)
    for seed in range(results["seeds"]):
        for optimizer in script.SWEPT:
            for batch in sizes:
                run = results["runs"][script.key("tuned", optimizer, batch, seed)]
                assert run["lr"] == script.tuned(results, optimizer, batch)
                assert 1 <= run["steps"] <= settings.most
                for base, suffix in script.bases(settings).items():
                    k, lr = batch / base, script.tuned(results, optimizer, base)
                    ruled = {"keep": lr, "linear": lr * k, "square root": lr * k**0.5}
                    for rule in script.RULES if k > 1 else ():
                        run = results["runs"][script.key(rule + suffix, optimizer, batch, seed)]
                        assert run["lr"] == pytest.approx(ruled[rule])
        for way in ("noise scale", "noise scale, smallest batch"):
            path = results["runs"][script.key(way, seed)]["path"]
            assert path[-1][1] <= settings.target < path[0][1] + 1e-3
            assert all(noise > 0 and signal > 0 for _, _, noise, signal in path)


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
    assert any(line.startswith("tuned SGD 64") for line in script.summary(grown))


def test_a_run_depends_on_its_seed_alone(script, tiny):
    runs = []
    for seed in (0, 0, 1):
        torch.manual_seed(len(runs))  # whatever else the process has done
        run = script.measure(tiny, "SGD", 16, 0.3, seed, watch=True)
        runs.append({k: v for k, v in run.items() if k != "seconds"})
    assert runs[0] == runs[1] != runs[2]


def test_a_run_that_misses_the_target_has_no_steps(script, tiny):
    assert script.measure(tiny, "SGD", 16, 1e-6, 0)["steps"] is None
    assert script.measure(tiny, "SGD", 16, 1e30, 0)["steps"] is None
    results = {"runs": {"tuned | SGD | 16 | 0": {"steps": None}}, "seeds": 1}
    assert script.steps_of(results, "tuned", "SGD", 16) == [math.inf]


def test_the_noise_scale_is_that_of_the_definition(script):
    torch.manual_seed(0)
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 1, 0])
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    rows = []
    for i in range(6):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x[i : i + 1]), y[i : i + 1]).backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    stacked = torch.stack(rows)
    noise, signal = script.noise_and_signal(model, x, y)
    assert signal == pytest.approx(stacked.mean(0).square().sum().item(), rel=1e-5)
    assert noise == pytest.approx(stacked.var(0, correction=0).sum().item(), rel=1e-5)


def test_a_rate_that_misses_is_chosen_only_where_all_do(script, monkeypatch):
    monkeypatch.setattr(script, "GRIDS", {"SGD": (1.0, 2)})

    def chosen(*steps_of_rates):
        runs = {
            script.key("tuning", "SGD", 4, lr, script.TUNING_SEED + i): {"steps": steps}
            for lr, rate in zip((1.0, 2.0, 4.0), steps_of_rates, strict=True)
            for i, steps in enumerate(rate)
        }
        settings = {"tuning_seeds": 2, "most": 100}
        return script.tuned({"settings": settings, "runs": runs}, "SGD", 4)

    assert chosen((90, 80), (10, None), (None, None)) == 1.0
    assert chosen((None, 80), (10, None), (None, None)) == 2.0
    with pytest.raises(ValueError, match="at no rate"):
        chosen((None, None), (None, None), (None, None))


def test_the_best_rates_lie_inside_their_grids(script):
    results = json.loads(script.RESULTS.read_text())
    settings = script.Settings(**results["settings"])
    for optimizer in script.GRIDS:
        rates = script.grid(optimizer)
        sizes = script.batches(settings)
        for batch in sizes if optimizer in script.SWEPT else (sizes[0], sizes[-1]):
            best = script.tuned(results, optimizer, batch)
            assert rates[0] < best < rates[-1], (optimizer, batch, best)


def test_the_committed_results_are_complete(script):
    results = json.loads(script.RESULTS.read_text())
    check_file(results, script)
    assert results["seeds"] >= 8
    assert results["settings"] == script.load(script.RESULTS, script.Settings())["settings"]
    assert script.RESULTS.stat().st_size < 300_000
