"""The study's script on a tiny setting: it measures, goes on where it stopped, and its file says what it should."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

KEPT = ("fp32", "8 bits", "deep gradient, 1%", "PowerSGD, rank 1")


@pytest.fixture(scope="module")
def script(study):
    return study("less_communication")


@pytest.mark.slow
@pytest.mark.stands_on("studies/", "dtcourse/asynchronous/", "dtcourse/compression/")
def test_it_measures_stops_and_goes_on(script, tmp_path, monkeypatch):
    # its ranks import it by its name
    monkeypatch.syspath_prepend(str(Path(script.__file__).parent))
    path = tmp_path / "results.json"
    settings = script.Settings(ranks=2, steps=4, every=2, samples=40, width=8, scale=2048)
    little = {"names": KEPT, "models": ["ResNet-50"], "links": [1, 100]}
    assert not script.study(path, settings, seeds=1, budget=0.0, **little)
    assert script.study(path, settings, seeds=1, **little)
    first = json.loads(path.read_text())
    assert set(first["runs"]) == {
        *(script.key("seconds", "ResNet-50", gigabits) for gigabits in (1, 100)),
        *(script.key("steps", name, 0) for name in KEPT),
    }
    for name in KEPT:
        curves = first["runs"][script.key("steps", name, 0)]["losses"].values()
        assert len(curves) == 3 and all(len(losses) == 3 for losses in curves)
    slow, fast = (first["runs"][script.key("seconds", "ResNet-50", g)] for g in (1, 100))
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
    assert len(list(script.summary(grown))) == 2 + len(KEPT)


def test_results_of_other_settings_are_not_mixed(script, tmp_path):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"format": script.FORMAT, "settings": {"steps": 1}, "runs": {}}))
    with pytest.raises(ValueError, match="give the same ones to go on"):
        script.load(path, script.Settings())
