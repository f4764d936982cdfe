"""The study of a step's bytes at other widths: its edits fit the scripts, and its routes predict what was counted."""

from __future__ import annotations

import pytest

from dtcourse.course.frameworks import named


@pytest.fixture(scope="module")
def script(study):
    return study("server_bytes")


def test_each_case_edits_a_script_that_is_as_it_was(script, monkeypatch, tmp_path):
    for case in script.CASES:
        source = named(case.framework).script_file.read_text()
        copy = tmp_path / f"{case.framework}.py"
        copy.write_text(source)
        if case.edit[0]:
            script.edit(copy, *case.edit)
        compile(copy.read_text(), copy.name, "exec")
    job = tmp_path / "job.py"
    job.write_text((script.places.home() / "frameworks" / "job.py").read_text())
    for old, new in script.JOB.items():
        script.edit(job, old, new)
    monkeypatch.setenv("WIDTH", "3")
    found = {"__name__": "job"}
    exec(compile(job.read_text(), "job.py", "exec"), found)
    assert sum(each.nbytes for each in found["weights"]().values()) == 4 * (
        64 * 3 + 3 + 3 * 10 + 10
    )
    found["Log"]().report([0.0] * 20)  # which the real job refuses


def test_an_edit_that_does_not_fit_is_an_error(script, tmp_path):
    (tmp_path / "a.py").write_text("x = 1\n")
    with pytest.raises(AssertionError, match=r"a\.py"):
        script.edit(tmp_path / "a.py", "y = 1", "y = 2")


def test_the_routes_predict_what_was_counted(script):
    results = script.load(script.RESULTS, script.Settings())
    assert list(results["runs"]) == [name for name, _ in script.jobs(script.Settings())]
    for case in script.CASES:
        assert script.slope(results, case) == pytest.approx(case.passes, rel=0.05, abs=0.01)
    assert len(list(script.summary(results))) == len(script.CASES)


def test_what_has_no_environment_is_said(script, monkeypatch, tmp_path):
    monkeypatch.setenv("DTCOURSE_FRAMEWORKS", str(tmp_path))
    with pytest.raises(ValueError, match="dtcourse framework run ray-actors"):
        script.measured(script.Settings(), script.CASES[0], 64)
