"""mypy knows what `launch` brings back: what the function returns,
and a RankFailure only where ranks go on after one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

HEAD = """
from typing import Any, assert_type

from dtcourse import launch
from dtcourse.launch import Handle, RankFailure, Run


def step(size: int) -> dict[str, int]:
    return {"size": size}


def choose() -> str:
    return "stop"


run = launch(step, 2, 5, backend="ring")
"""


def mypy(tmp_path, code: str) -> str:
    """What mypy says of HEAD and `code`, without PyTorch's own types: they take it a minute,
    and change nothing here."""
    tmp_path.joinpath("mypy.ini").write_text(
        "[mypy]\n[mypy-torch.*]\nfollow_imports = skip\nignore_errors = True\n"
    )
    tmp_path.joinpath("cell.py").write_text(HEAD + code + "\n")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        "mypy.ini",
        "--follow-imports=silent",
        "cell.py",
    ]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert not done.stderr, done.stderr
    return done.stdout


RIGHT = """
assert_type(run, Run[dict[str, int]])
assert_type(launch(step, 2, 5, wait=False), Handle[dict[str, int]])
assert_type(run[0], dict[str, int])
assert_type(run[1:], list[dict[str, int]])
assert_type([answer["size"] for answer in run], list[int])
assert_type(launch(lambda: 1.5, 2)[0], float)
goes_on = launch(step, 2, 5, on_failure="continue")
assert_type(goes_on[0], dict[str, int] | RankFailure)
assert_type(launch(step, 2, 5, on_failure=choose())[0], dict[str, int] | RankFailure)
"""


@pytest.mark.slow
def test_mypy_knows_what_ranks_return(tmp_path):
    assert "Success" in mypy(tmp_path, RIGHT)


WRONG = {
    "what the function does not return": ("run[0].shape", 'has no attribute "shape"'),
    "a failure for a result": (
        'launch(step, 2, 5, on_failure="continue")[0]["size"]',
        "not indexable",
    ),
    "an option that is no string": ("launch(step, 2, 5, backend=7)", "No overload variant"),
}


@pytest.mark.slow
def test_mypy_sees_what_is_wrong(tmp_path):
    said = mypy(tmp_path, "\n".join(code for code, _ in WRONG.values()))
    first = HEAD.count("\n") + 1
    for line, (name, (_, message)) in enumerate(WRONG.items(), first):
        assert any(message in text for text in said.splitlines() if f":{line}:" in text), (
            f"{name}: {said}"
        )
