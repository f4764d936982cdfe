"""Notebooks that a test may kill, and what Slurm says meanwhile."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

MINUTE = 60.0


def own_settings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster.toml in this folder, by which all launches of a test go; their jobs lie beside it."""
    file = folder / "cluster.toml"
    file.write_text(f'folder = "{folder}/jobs"\nminutes = 10\n')
    monkeypatch.setenv("DTCOURSE_CLUSTER", str(file))
    return file


def until(condition: Callable[[], Any]) -> Any:
    """What the condition returns as soon as that is true."""
    deadline = time.monotonic() + 2 * MINUTE
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)
    return found


def queue(form: str = "%i") -> list[str]:
    """One line for each job that waits or runs."""
    asked = ["squeue", "--noheader", f"--format={form}"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()


@contextmanager
def notebook(folder: Path, cells: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs the cells, as a notebook would; killed at the end of the block where it still lives."""
    script = folder / "notebook.py"
    script.write_text(textwrap.dedent(cells))
    process = subprocess.Popen([sys.executable, script, *map(str, arguments)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
