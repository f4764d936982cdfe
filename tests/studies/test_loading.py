"""The study of loaders: what it makes of files, what it counts, what it repeats; no time is asserted."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from tests.turns import takes_turns


@pytest.fixture(scope="module")
def script(study):
    return study("loading")


@pytest.fixture(scope="module")
def small(script):
    return script.Settings(
        files=3, height=24, size=8, counted=50, batch=2, batches=6, skipped=2, elsewhere=0.001,
        multiplied=8, times=1, read=0.001, stalls=3, names=400, tries=1,
    )  # fmt: skip


@pytest.mark.parametrize("work", ["decode", "Python"])
def test_every_loader_gives_the_same_batches_in_the_same_order(script, small, tmp_path, work):
    script.write_pictures(tmp_path, small)
    dataset = script.Pictures(tmp_path, work, small)
    right = torch.stack([dataset[i] for i in range(len(dataset))])
    assert right.shape == ((6, 2, 3, 8, 8) if work == "decode" else (6, 2, 256))
    for name in script.LOADERS:
        assert torch.equal(torch.stack(list(script.loader(dataset, name))), right), name


def test_pictures_are_the_same_files_each_time(script, small, tmp_path):
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        script.write_pictures(folder, small)
    first, again = ([p.read_bytes() for p in sorted((tmp_path / f).iterdir())] for f in "ab")
    assert first == again
    assert len(set(first)) == 3


def test_all_names_are_read_by_four_processes(script):
    for kind in ("list", "array"):
        names = script.Names(kind, 400)
        parts = list(script.loader(names, "4 processes", prefetch_factor=1))
        assert len({pid for pid, _, _ in parts}) == 4
        assert sum(read for _, read, _ in parts) == 400 * len("train/0000/00000000.jpg")
        assert all(megabytes is None or megabytes > 0 for _, _, megabytes in parts)


def test_time_passes_between_the_batches_that_count(script):
    class Clock:
        def __init__(self):
            self.steps = 0

        def __call__(self):
            self.steps += 1
            time.sleep(0.002)

    step = Clock()
    found = script.timed(iter(range(6)), step, skipped=2)
    assert step.steps == 7  # once before
    assert found["batch"] >= 0.002


@takes_turns("studies/")
def test_the_study_goes_on_where_it_stopped(script, small, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "LOADERS", ("in turns", "2 processes"))
    monkeypatch.setattr(script, "FACTORS", ("1", "4, any order"))
    out = tmp_path / "found.json"
    assert not script.study(out, small, 2, budget=0)
    assert script.study(out, small, 2)
    results = script.load(out, small)
    names = [name for name, _ in script.jobs(tmp_path, small, 2)]
    assert set(results["runs"]) == set(names)
    assert len(names) == len(set(names)) == 2 * (2 * 3 * 2 + 2 + 2 + 2)
    # Another order in each repetition.
    first, second = ([n.rsplit(" | ", 1)[0] for n in names if n.endswith(f"| {s}")] for s in "01")
    assert first != second
    assert sorted(first) == sorted(second)
    assert any("2 processes" in line for line in script.summary(results))
    with pytest.raises(ValueError, match="another --out"):
        script.load(out, replace(small, batch=3))
