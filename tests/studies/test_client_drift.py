"""The study of clients that drift: it measures, goes on where it stopped, and its committed file can be trusted."""

from __future__ import annotations

import json
import math
import statistics

import pytest
import torch

from tests.turns import takes_turns


@pytest.fixture(scope="module")
def script(study):
    return study("client_drift")


@pytest.fixture(scope="module")
def results(script):
    found = json.loads(script.RESULTS.read_text())
    return script.load(script.RESULTS, script.Settings(**found["settings"]))


def test_each_method_is_tuned_and_its_best_lies_inside(script, results):
    for case, methods in script.METHODS.items():
        for method in methods:
            tuned = results["runs"][script.key("tuned", case, method.name)]
            rates = sorted(map(float, tuned["ends"]))
            assert rates[0] < tuned["best"] < rates[-1] and len(rates) >= 5
            assert all(
                len(ends) == results["settings"]["tuning"] for ends in tuned["ends"].values()
            )

            def median(rate, tuned=tuned):
                ends = tuned["ends"][f"{rate:g}"]
                return statistics.median(math.inf if end is None else end for end in ends)

            assert min(rates, key=median) == tuned["best"]


def test_every_run_is_there(script, results):
    assert results["settings"] == {"rounds": 30, "tuning": 3} and results["seeds"] == 8
    for case, methods in script.METHODS.items():
        for method in methods:
            for seed in range(results["seeds"]):
                run = results["runs"][script.key("rounds", case, method.name, seed)]
                assert len(run["losses"]) == 30 and None not in run["losses"]
    assert script.family(results, "ten", "FedAdam") == "FedAdam, server 1"
    assert script.family(results, "ten", "FedProx") == "FedProx, mu = 0.01"
    assert len(list(script.summary(results))) == 2 + sum(map(len, script.METHODS.values()))


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("ten", "SCAFFOLD"),
        ("ten", "FedProx, mu = 0.01"),
        ("ten", "FedAdam, server 1"),
        ("sorted", "FedAvg, 1 epochs"),
    ],
)
def test_a_run_is_as_it_was_committed(script, results, case, name):
    """Its first rounds: later ones amplify the last digits, which are the processor's."""
    settings = script.Settings(rounds=4)
    method = next(one for one in script.METHODS[case] if one.name == name)
    lr = results["runs"][script.key("tuned", case, name)]["best"]
    found = script.losses(settings, case, method, lr, 3)
    committed = results["runs"][script.key("rounds", case, name, 3)]["losses"]
    assert found == pytest.approx(committed[:4], rel=1e-2)


def test_images_are_dealt_as_it_says(script):
    ten, sampled, batch = script.clients_of("ten", script.METHODS["ten"][1], 0)
    assert len(ten) == sampled == 10 and batch is None
    assert statistics.mean(max(row) / sum(row) for row in ten.label_counts(10).tolist()) > 0.5
    alike = script.clients_of("ten", script.METHODS["ten"][0], 0)[0]
    assert all(max(row) < 0.2 * sum(row) for row in alike.label_counts(10).tolist())
    apart, sampled, batch = script.clients_of("sorted", script.METHODS["sorted"][0], 0)
    assert (len(apart), sampled, batch) == (50, 10, 6)
    assert all((row > 0).sum() <= 2 for row in torch.as_tensor(apart.label_counts(10)))


@takes_turns("studies/")
def test_it_measures_stops_and_goes_on(script, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(script, "METHODS", {"ten": script.METHODS["ten"][1:2]})
    monkeypatch.setattr(script, "GUESS", {"ten": 32.0})
    path, settings = tmp_path / "results.json", script.Settings(rounds=1, tuning=1)
    assert not script.study(path, settings, seeds=1, budget=0.0)
    assert script.study(path, settings, seeds=1)
    first = json.loads(path.read_text())["runs"]
    assert script.study(path, settings, seeds=2)
    grown = json.loads(path.read_text())["runs"]
    assert first.items() <= grown.items() and len(grown) == len(first) + 1
    with pytest.raises(ValueError, match="was measured with settings"):
        script.load(path, script.Settings(rounds=2))
