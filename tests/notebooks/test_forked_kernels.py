"""Kernels that are split off from a nursery: as new ones, but for what is imported."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import zlib
from contextlib import suppress
from pathlib import Path

import nbformat
import psutil
import pytest

from dtcourse.launch import template
from tools import forked_kernels
from tools.nursery import Nursery

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.stands_on(
        "tools/forked_kernels.py", "tools/nursery.py", "dtcourse/launch/", share=(1, 10)
    ),
    pytest.mark.skipif(not template.POSSIBLE, reason="kernels begin as usual but on Linux"),
]
LOOK = """
import json, multiprocessing.process, os, random, signal, sys, time
import matplotlib, numpy
from dtcourse import launch
from dtcourse.launch import template

def own():
    return {
        "its own session": os.getsid(0) == os.getpgid(0) == os.getpid(),
        "folder": [os.getcwd(), multiprocessing.process.ORIGINAL_DIR],
        "notebook": sys.modules["__main__"].__dict__ is globals(),
        "hears of its children": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
        "backend": matplotlib.get_backend(),
        "flags": list(sys.flags),
        "argv": sys.argv[:-1],
        "path": sys.path,
        "variables": {name: value for name, value in os.environ.items() if name not in VARIABLES},
        "of the course": [name for name in sys.modules if name.startswith("dtcourse.sharding")],
        "magic": "dtcourse" in get_ipython().magics_manager.magics["line"],
        "in ranks": launch(lambda: [__import__("torch").get_num_threads(), sys.path, os.getcwd()], 1)[0],
    }

VARIABLES = {"JPY_PARENT_PID", "PYTEST_CURRENT_TEST", "DTCOURSE_TEST_SESSION"}
found = {"own": own(), "pid": os.getpid(), "parent": os.getppid()}
found |= {"ranks": list(launch(os.getpid, 2)), "their server": [*launch(os.getppid, 2)]}
found["chance"] = [random.random(), numpy.random.random()]
deadline = time.monotonic() + 100
while not (template.refresh() and template.is_complete()) and time.monotonic() < deadline:
    time.sleep(0.2)
found["has a template"] = template.is_complete()
open(NAME, "w").write(json.dumps(found));
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    """Two notebooks, with one between that fails, in kernels that are split off; and one in a kernel of its own."""
    folder = tmp_path_factory.mktemp("forked")
    for name, codes in {"a": [LOOK], "b": ["1 / 0"], "c": [LOOK], "alone": [LOOK]}.items():
        given = [nbformat.v4.new_code_cell(code) for code in [f"NAME = '{name}.json'", *codes]]
        nbformat.write(nbformat.v4.new_notebook(cells=given), folder / f"{name}.ipynb")
    draw = turn_of_none("a", "b", "c")  # in which none of these has a kernel of its own
    printed = run(folder, draw, ["a", "b", "c"], "-p", "tools.forked_kernels")
    assert "1 failed" in printed and "5 passed" in printed, printed
    assert "2 passed" in run(folder, draw, ["alone"])
    return [json.loads((folder / f"{name}.json").read_text()) for name in ("a", "c", "alone")]


def turn_of_none(*names):
    taken = {-zlib.crc32(f"{name}.ipynb".encode()) % forked_kernels.OWN for name in names}
    return f"{min(set(range(forked_kernels.OWN)) - taken):08x}"


def run(folder, draw, names, *plugin):
    record = str(folder / "record.jsonl")
    command = [sys.executable, str(ROOT / "tools" / "recorded_pytest.py"), record, *plugin]
    command += [
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        "--nbval-lax",
        "--nbval-current-env",
    ]
    command += [str(folder / f"{name}.ipynb") for name in names]
    environment = {name: value for name, value in os.environ.items() if name != "MPLBACKEND"}
    environment |= {forked_kernels.rotation.DRAW: draw, forked_kernels.rotation.TRIED: "drawn"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_a_kernel_is_as_a_new_one(kernels):
    first, last, alone = kernels
    for one in (first, last):
        assert one["own"] == alone["own"]
        assert one["has a template"] and one["pid"] not in one["their server"]
    assert first["own"]["of the course"] == []
    assert first["own"]["magic"] and first["own"]["notebook"] and first["own"]["in ranks"][0] == 1


def test_two_kernels_share_nothing_but_a_parent(kernels):
    first, last, alone = kernels
    assert first["parent"] == last["parent"] != alone["parent"]
    assert not {first["pid"], *first["ranks"]} & {last["pid"], *last["ranks"]}
    assert not set(first["chance"]) & set(last["chance"])
    assert not any(os.path.exists(f"/proc/{one['pid']}") for one in kernels)


def test_it_ends_with_pytest(tmp_path):
    """The nursery when its socket closes, a kernel when the nursery has gone."""
    code = """
import os, sys, time
from jupyter_client.manager import KernelManager
from tools import forked_kernels
forked_kernels.begins_as_usual = lambda notebook: False
class Config:
    getoption = staticmethod(lambda *names: None)
forked_kernels.pytest_configure(Config())
manager = KernelManager(kernel_name="python3")
manager.start_kernel()
kernel = manager.provisioner.process.pid
nursery = int(open(f"/proc/{kernel}/stat").read().rpartition(")")[2].split()[1])
print(kernel, nursery, os.getpid(), flush=True)
time.sleep(1)
os.kill(os.getpid(), 9)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    kernel, nursery, parent = map(int, done.stdout.split())
    assert nursery != parent
    deadline = time.monotonic() + 60
    while any(map(runs, (kernel, nursery))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not runs(nursery)
    assert not runs(kernel)


def runs(pid):
    """Whether there is such a process that is no zombie."""
    with suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_where_the_nursery_has_died_kernels_begin_as_usual(monkeypatch):
    nursery = Nursery()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        nursery.socket, nursery.process = ours, object()  # that is to have begun
        theirs.close()
        assert nursery.kernel([], {}) is None
        assert not nursery.works
        assert nursery.kernel([], {}) is None


def test_a_variable_that_is_read_once_asks_for_a_new_one(monkeypatch):
    nursery = Nursery()
    monkeypatch.setattr(nursery, "_begin", lambda: pytest.fail("it would be asked"))
    for other in (
        {"OMP_NUM_THREADS": "7"},
        {"ATEN_CPU_CAPABILITY": "default"},
        {"PYTHONHASHSEED": "1"},
    ):
        assert nursery.kernel([], {"env": nursery.environment | other}) is None
    with pytest.raises(pytest.fail.Exception):
        nursery.kernel([], {"env": nursery.environment | {"HOME": "elsewhere"}})


def test_some_notebooks_have_a_kernel_of_their_own(monkeypatch):
    """One in four with each draw, all of them with four in a row; and those that set what a library reads once."""
    monkeypatch.setenv(forked_kernels.rotation.TRIED, "drawn")
    names = [Path(f"{number}.ipynb") for number in range(400)]
    seen = []
    for turn in range(4):
        monkeypatch.setattr(forked_kernels.rotation, "draw", lambda turn=turn: f"{turn:08x}")
        seen.append({name for name in names if forked_kernels.begins_as_usual(name)})
    assert set.union(*seen) == set(names) and sum(map(len, seen)) == len(names)
    assert all(60 < len(one) < 140 for one in seen)


def test_notebooks_that_set_what_is_read_once_are_known():
    own = [
        path.name.partition("-")[0]
        for folder in ("lessons", "solutions")
        for path in sorted((ROOT / folder).glob("*.ipynb"))
        if forked_kernels.sets_what_is_read_once(path)
    ]
    assert own == ["02", "23", "23b", "24", "24b"]
