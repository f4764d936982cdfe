"""The scripts do the job: PyTorch's DDP by `make test`, the others by turns, where one's files have changed surely.

Those that need no environment of their own run everywhere, and the others where theirs is ready, which is so on the
machine of whoever has changed one: test_records.py fails where a script is not the one that its record was made with.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from dtcourse.course.frameworks import Framework, environment, known, running
from tests import optional_programs

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = "pytorch-ddp"
SHARE = (
    1,
    8,
)  # of those with environments of their own, where nothing has changed: some of them take minutes


def to_try() -> list[Framework]:
    """The frameworks that can run here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DTCOURSE_HOME", str(ROOT))
        return [each for each in known().values() if environment.is_ready(each)]


def in_turns(framework):
    about = [f"frameworks/{framework.script}", "frameworks/job.py"]
    if framework.pins:
        files = f"frameworks/pins/{framework.pins}.txt", f"frameworks/{framework.prepare}"
        marks = [pytest.mark.stands_on(*about, *files[: 1 + bool(framework.prepare)], share=SHARE)]
    elif framework.name == ALWAYS:
        marks = []
    else:
        marks = [pytest.mark.stands_on(*about, "dtcourse/course/frameworks/")]
    if framework.needs in optional_programs.NEEDS:
        marks.append(pytest.mark.needs(framework.needs))
    return pytest.param(framework.name, marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*map(in_turns, to_try())])
def test_a_script_reaches_plain_pytorchs_losses(name, monkeypatch):
    monkeypatch.setenv("DTCOURSE_HOME", str(ROOT))
    framework = known()[name]
    found = running.run(framework, timeout=240)
    assert len(found["losses"]) == 20
    assert found["largest_difference"] <= 5e-7
    if running.can_be_alone() and not framework.wire:
        assert found["step_bytes"] > 5_000  # the smallest message of a step, rows' sums, both ways
    else:
        assert found["step_bytes"] is None


def test_those_without_an_environment_of_their_own_are_tried_everywhere():
    names = {framework.name for framework in to_try()}
    assert names >= {
        "course-ddp",
        "mpi4py",
        "pytorch-ddp",
        "pytorch-rpc",
        "pytorch-tensor-parallel",
    }


@pytest.mark.parametrize(
    ("said", "failures", "runs"), [(running.TORN, 2, 3), (running.TORN, 9, 3), ("a mistake", 9, 1)]
)
def test_only_what_python_s_end_aborts_is_run_again(said, failures, runs, monkeypatch):
    monkeypatch.setenv("DTCOURSE_HOME", str(ROOT))
    begun = []

    def aborts(*_):
        begun.append(said)
        if len(begun) <= failures:
            raise running.NotEqual(-6, said)
        return {"losses": []}

    monkeypatch.setattr(running, "_run", aborts)
    if failures < running.TRIES:
        assert running.run(known()[ALWAYS], 1.0)["losses"] == []
    else:
        with pytest.raises(running.NotEqual):
            running.run(known()[ALWAYS], 1.0)
    assert len(begun) == runs


def test_what_a_run_said_is_shortened_around_its_errors():
    fifty = [f"warning {i}" for i in range(50)]
    cause = "[rank0]: RuntimeError: no such device"
    said = running._shortened(
        "\n".join([*fifty, cause, "    RuntimeError: in a line of code", *fifty])
    )
    assert cause in said and "(51 lines left out)" in said
    assert said.splitlines()[0] == "warning 0" and said.splitlines()[-1] == "warning 49"
    assert running._shortened("one line") == "one line"
