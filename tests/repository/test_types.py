"""mypy is content with the package, and knows what `launch` brings back: what the function returns, and a RankFailure
only where ranks go on after one. One run of mypy says all of it: PyTorch's own types take most of a run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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

WRONG = {
    "what the function does not return": ("run[0].shape", 'has no attribute "shape"'),
    "a failure for a result": (
        'launch(step, 2, 5, on_failure="continue")[0]["size"]',
        "not indexable",
    ),
    "an option that is no string": ("launch(step, 2, 5, backend=7)", "No overload variant"),
}
FIRST = HEAD.count("\n") + 1  # the line of the first


def unlike(said: str) -> list[str]:
    """Where mypy's words about the package, right_cell.py and wrong_cell.py are others than they should be."""
    missing = [
        f"mypy does not see {name}"
        for line, (name, (_, message)) in enumerate(WRONG.items(), FIRST)
        if not any(f"wrong_cell.py:{line}:" in one and message in one for one in said.splitlines())
    ]
    errors = [
        one for one in said.splitlines() if ": error: " in one and "wrong_cell.py:" not in one
    ]
    return missing + errors


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_mypy_is_content_with_the_package_and_knows_what_ranks_return(tmp_path):
    cells = {"right": RIGHT, "wrong": "\n".join(code for code, _ in WRONG.values())}
    paths: list[Path] = []
    for name, code in cells.items():
        paths.append(tmp_path / f"{name}_cell.py")
        paths[-1].write_text(HEAD + code + "\n")
    version = "{}.{}".format(*sys.version_info)  # CI tries a second one (tools/other_python.py)
    options = [f"--cache-dir={tmp_path / 'cache'}", f"--python-version={version}"]
    command = [sys.executable, "-m", "mypy", *options, "dtcourse", *map(str, paths)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    # 1: the wrong cell's errors. With none, or where it did not run, it is another.
    assert done.returncode == 1 and not done.stderr, done.stdout + done.stderr
    assert not unlike(done.stdout), done.stdout[-4000:]


SAID = f"""\
cell/wrong_cell.py:{FIRST}: error: "dict[str, int]" has no attribute "shape"  [attr-defined]
cell/wrong_cell.py:{FIRST + 1}: error: Value of type "RankFailure | ..." is not indexable  [index]
cell/wrong_cell.py:{FIRST + 2}: error: No overload variant of "launch" matches argument types  [call-overload]
"""


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (SAID, 0),
        (SAID + "dtcourse/a.py:3: error: Missing return statement  [return]\n", 1),
        (SAID + "cell/right_cell.py:20: error: Expression is of type  [assert-type]\n", 1),
        (SAID.replace(f":{FIRST + 1}:", ":1:"), 1),
        ("", 3),
    ],
)
def test_each_of_them_is_looked_at(said, found):
    assert len(unlike(said)) == found
