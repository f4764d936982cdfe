"""What a study keeps: whole or not at all, and continued only with the same settings."""

from __future__ import annotations

import json

import pytest

from dtcourse.course import results_file as kept


def test_a_crash_while_writing_leaves_the_file_whole(tmp_path):
    path = tmp_path / "deep" / "results.json"
    results = kept.load(path, "a study", format=1, settings={"samples": 3}) | {
        "runs": {"a": {"seconds": 1.0}}
    }
    kept.save(results, path, 1)
    results["runs"]["b"] = {"seconds": float("nan")}  # not JSON
    with pytest.raises(ValueError, match="JSON"):
        kept.save(results, path, 1)
    found = json.loads(path.read_text())
    assert list(found["runs"]) == ["a"]
    assert {"what", "settings", "date", "machine", "versions", "seeds", "seconds"} <= set(found)


def test_it_is_continued_with_the_same_settings_only(tmp_path):
    path = tmp_path / "results.json"
    kept.save(kept.load(path, "a study", format=1, settings={"samples": 3}), path, 1)
    assert kept.load(path, "a study", format=1, settings={"samples": 3})["runs"] == {}
    for version, samples in ((1, 4), (2, 3)):
        with pytest.raises(ValueError, match="another --out"):
            kept.load(path, "a study", format=version, settings={"samples": samples})
