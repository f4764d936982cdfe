"""dtcourse bench collectives: measured, shown, written; and what it refuses."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from dtcourse.cli import app


def test_rows_are_shown_written_and_drawn(tmp_path):
    result = CliRunner().invoke(
        app,
        ["bench", "collectives", "--ranks", "2", "--backend", "ring", "--backend", "gloo", "--largest", "4096",
         "--repeats", "2", "--json", str(tmp_path / "out.json"), "--plot", str(tmp_path / "out.png")],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "out.json").read_text())
    assert {(r["backend"], r["bytes"]) for r in written["rows"]} == {
        (b, size) for b in ("ring", "gloo") for size in (1024, 4096)
    }
    assert all(
        r["bus_bandwidth"] == pytest.approx(r["bytes"] / r["seconds"]) for r in written["rows"]
    )  # 2 (p - 1) / p is 1
    assert (tmp_path / "out.png").stat().st_size > 1000
    assert "ring" in result.output and "4,096" in result.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--collective", "all_at_once"], "no benchmark of 'all_at_once'"),
        (["--backend", "pigeon"], "no backend 'pigeon'"),
        (["--largest", "8"], "smallest message has 1024 bytes"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_sentence(arguments, says):
    result = CliRunner().invoke(app, ["bench", "collectives", *arguments])
    assert result.exit_code == 2
    assert says in " ".join(result.output.split())
