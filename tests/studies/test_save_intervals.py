"""The study of save intervals: it runs, and the committed runs hold what issue and lesson say of the formulas."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="module")
def script(study):
    return study("save_intervals")


def test_it_measures_once_and_refuses_other_seeds(script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script.torch, "set_num_threads", lambda n: None)
    monkeypatch.setattr(script, "SHAPES", (1.0,))
    monkeypatch.setattr(script, "SAVES", (0.05,))
    small = ["--out", str(tmp_path / "found.json"), "--failures", "20", "--candidates", "9"]
    script.main([*small, "--seeds", "4"])
    assert "3 runs; complete" in capsys.readouterr().out
    before = (tmp_path / "found.json").read_text()
    script.main([*small, "--seeds", "4"])
    assert (tmp_path / "found.json").read_text() == before
    with pytest.raises(ValueError, match="has 4 seeds in each run, and 5 are asked for"):
        script.main([*small, "--seeds", "5"])
    with pytest.raises(ValueError, match="another --out"):
        script.main([*small[:2], "--seeds", "4"])


def test_an_interval_of_an_asynchronous_save_is_never_shorter_than_its_writing(script):
    job = script.job_of(1.0, 0.0, True)
    found = script.measured(script.Settings(failures=20, candidates=9), 4, job, 1.0)
    assert found["intervals"]["Young"] == found["intervals"]["Daly"] == job.shortest == 0.9


def test_what_the_committed_runs_say(script):
    results = json.loads(script.RESULTS.read_text())
    assert results["seeds"] == 1000
    wanted = script.jobs(script.Settings(**results["settings"]), 1000)
    assert [name for name, _ in wanted] == list(results["runs"])
    for name, run in results["runs"].items():
        shape, save = map(float, name.split(" | ")[:2])
        asynchronous = name.count(" | ") == 3
        least = run["waste"]["searched"]
        # A mean of a seed's quotients is off by the order of one in its 200 failures.
        for which, expected in run["expected"].items():
            assert run["waste"][which] == pytest.approx(expected, abs=0.01), name
            assert expected >= run["least"] - 1e-6, name
        assert run["expected"]["searched"] <= 1.01 * run["least"], name
        for low, high in (run["more"][formula][1:] for formula in script.FORMULAS):
            assert low <= high
        young, daly = (run["more"][formula] for formula in script.FORMULAS)
        if shape == 1.0 and not asynchronous:
            assert daly[2] <= 0.003 * least, name
            if save <= 0.05:
                assert young[2] <= 0.01 * least, name
            if save >= 0.5:
                assert young[1] >= 0.015 * least, name
        if shape == 0.5 and not asynchronous and save >= 0.05:
            assert daly[1] > young[2], f"{name}: where failures come in clusters Young's is closer"
        if shape == 1.5 and not asynchronous and save >= 0.05:
            assert young[1] > daly[2], f"{name}: where they are spaced Daly's is"
