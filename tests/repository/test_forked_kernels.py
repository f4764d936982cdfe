"""Kernels that are split off from a nursery: as new ones, but for what is imported."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from dtcourse.launch import template

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not template.POSSIBLE, reason="kernels begin as usual but on Linux"),
]
LOOK = """
import json, os, random, signal, sys
import matplotlib, numpy
from dtcourse import launch

def told():
    nursery = os.getppid()
    return {
        "pid": os.getpid(),
        "its own session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "nursery": open(f"/proc/{nursery}/cmdline").read(),
        "threads of the nursery": len(os.listdir(f"/proc/{nursery}/task")),
        "folder": os.getcwd(),
        "chance": [random.random(), numpy.random.random()],
        "of the course": [name for name in sys.modules if name.startswith("dtcourse.sharding")],
        "has torch": "torch" in sys.modules,
        "notebook": sys.modules["__main__"].__dict__ is globals(),
        "hears of its children": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
        "backend": matplotlib.get_backend(),
    }

found = told() | {"ranks": list(launch(os.getpid, 2)), "their server": [*launch(os.getppid, 2)]}
open(NAME, "w").write(json.dumps(found));
"""


def test_a_kernel_is_as_a_new_one_but_for_what_is_imported(tmp_path):
    cells = {"a": [LOOK], "b": ["1 / 0"], "c": [LOOK]}
    for name, codes in cells.items():
        given = [
            nbformat.v4.new_code_cell(f"NAME = '{name}.json'"),
            *map(nbformat.v4.new_code_cell, codes),
        ]
        nbformat.write(nbformat.v4.new_notebook(cells=given), tmp_path / f"{name}.ipynb")
    command = [
        sys.executable,
        str(ROOT / "tools" / "recorded_pytest.py"),
        str(tmp_path / "record.jsonl"),
    ]
    command += [
        "-p",
        "tools.forked_kernels",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
        "--nbval-lax",
    ]
    command += ["--nbval-current-env", *(str(tmp_path / f"{name}.ipynb") for name in cells)]
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert "1 failed" in done.stdout and "5 passed" in done.stdout, done.stdout + done.stderr

    first, last = (json.loads((tmp_path / f"{name}.json").read_text()) for name in "ac")
    for one in (first, last):
        assert one["nursery"].split("\0")[2] == str(ROOT / "tools" / "forked_kernels.py")
        assert one["threads of the nursery"] == 1
        assert one["its own session"] and one["notebook"] and one["hears of its children"]
        assert one["folder"] == str(tmp_path) and "inline" in one["backend"]
        assert one["has torch"] and one["of the course"] == []
        assert one["pid"] not in one["their server"]
    assert not {first["pid"], *first["ranks"]} & {last["pid"], *last["ranks"]}
    assert not set(first["chance"]) & set(last["chance"])


def test_a_variable_that_a_library_reads_once_asks_for_a_new_one(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "tools")
    forked_kernels = importlib.import_module("forked_kernels")
    nursery = forked_kernels.Nursery.__new__(forked_kernels.Nursery)
    inline = {"MPLBACKEND": forked_kernels.INLINE}
    nursery.environment, nursery.works = {"OMP_NUM_THREADS": "1", "HOME": "/a"} | inline, True
    for other in (
        {"OMP_NUM_THREADS": "2"},
        {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"},
    ):
        assert nursery.kernel([], {"env": other}) is None
    with pytest.raises(AttributeError):  # it would be asked now
        nursery.kernel([], {"env": {"OMP_NUM_THREADS": "1"}})
