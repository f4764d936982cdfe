"""The study of all-reduce routes: what it times are the lesson's routes, and what it writes can be fitted; no time is
asserted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dtcourse import launch


@pytest.fixture(scope="module")
def script(study):
    return study("all_reduce_routes")


def test_the_routes_are_the_lessons_and_they_sum(script):
    routes = script.lesson_routes()
    assert tuple(routes) == script.ROUTES

    def summed():
        import torch.distributed as dist

        found = []
        for route in routes.values():
            x = torch.full((8,), 10.0 ** dist.get_rank())
            route(x)
            found.append(x.tolist())
        return found

    assert launch(summed, 4, device="cpu", backend="gloo")[3] == [[1111.0] * 8] * 4


def test_a_run_has_all_that_is_compared_and_is_not_made_twice(
    script, tmp_path, capsys, monkeypatch
):
    monkeypatch.syspath_prepend(
        str(Path(script.__file__).parent)
    )  # the ranks import it by its name
    path = tmp_path / "routes.json"
    small = [
        "--out",
        str(path),
        "--seeds",
        "1",
        "--ranks",
        "2",
        "--sizes",
        "64 128",
        "--sizes-sent",
        "64",
    ]
    small += ["--timed", "2", "--tries", "1"]
    script.main(small)
    assert "1 runs; complete" in capsys.readouterr().out
    before = path.read_text()
    run = script.load(
        path, script.Settings(ranks="2", sizes="64 128", sizes_sent="64", timed=2, tries=1)
    )
    found = run["runs"]["2 | 0"]
    assert {name: set(times) for name, times in found["routes"].items()} == {
        name: {"64", "128"} for name in script.ROUTES
    }
    # A round there and back is two messages in turn; in a row, the latencies of two overlap.
    assert [row[:3] for row in found["sent"]["one at a time"]] == [
        [2, 2, 64], [2, 4, 64], [2, 8, 64], [4, 4, 64], [8, 8, 64],
    ]  # fmt: skip
    assert [row[:2] for row in found["sent"]["all at once"]] == [
        [1, 1],
        [1, 2],
        [1, 4],
        [2, 2],
        [4, 4],
    ]
    assert all(min(row[3:]) > 0 for rows in found["sent"].values() for row in rows)
    script.main(small)
    assert path.read_text() == before
