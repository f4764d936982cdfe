"""A pytest plugin: a notebook about nothing that has changed waits where it has not begun in time (tests/rotation.py).

python -m pytest -p tools.late_notebooks --nbval lessons/
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import rotation

why: dict[Path, str] = {}  # of the notebooks of which a cell's turn has come in this process


@pytest.hookimpl(tryfirst=True)  # before its kernel starts
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What holds for a notebook's first cell holds for all: one that has begun goes on to its end."""
    if item.path.suffix != ".ipynb":
        return
    if item.path not in why:
        name = item.path.relative_to(rotation.ROOT).as_posix()
        why[item.path] = "" if rotation.is_about_a_change(name) else rotation.why_too_late()
    if why[item.path]:
        pytest.skip(why[item.path])
