"""The scripts that need no environment of their own do the job: PyTorch's six. One runs always, the others by turns."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtcourse.course.frameworks import known, running

ROOT = Path(__file__).resolve().parents[2]
ALWAYS = "pytorch-ddp"
PYTORCH = [
    "pytorch-ddp",
    "pytorch-fsdp",
    "pytorch-fully-shard",
    "pytorch-rpc",
    "pytorch-pipelining",
    "pytorch-tensor-parallel",
]


def in_turns(name):
    script = f"frameworks/{name.replace('-', '_')}.py"
    stands_on = pytest.mark.stands_on(script, "frameworks/job.py", "dtcourse/course/frameworks/")
    return pytest.param(name, marks=[] if name == ALWAYS else stands_on)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*map(in_turns, PYTORCH)])
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
