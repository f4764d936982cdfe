"""What holds for every test: no window, no writing into the user's home, no rank left behind."""

from __future__ import annotations

import collections
import faulthandler
import gc
import os
import signal
import sys
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

from dtcourse.launch import server

ROOT = Path(__file__).resolve().parent.parent

# Every process that a test starts inherits this, so an orphan is found although init has adopted it.
MARK = "DTCOURSE_TEST_SESSION"
os.environ[MARK] = uuid.uuid4().hex

# Two workers with a thread for each core wait for each other: small tensors are several times faster with one.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["MPLBACKEND"] = "Agg"
os.environ.setdefault("MPLCONFIGDIR", str(ROOT / ".cache" / "matplotlib"))

# How many times as long as usual things take here just now; tools/test.py has measured it.
SLOWNESS = float(os.environ.get("DTCOURSE_TEST_SLOWNESS", "1"))

# A shell's background jobs ignore Ctrl-C, and hand that down to what they start: tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Jupyter and IPython keep kernels, history and settings in the home folder. Tests neither read the
# user's nor leave theirs there.
_home = tempfile.TemporaryDirectory(prefix="dtcourse-tests-", ignore_cleanup_errors=True)
for _name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
    os.environ[_name] = str(Path(_home.name, _name.lower()))

# Times vary on a shared machine, so no deadline for an example; CI tries the same examples each time.
hypothesis.settings.register_profile("dtcourse", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "dtcourse")


# A rank imports the module that its function is from, and with it these: most of what a short launch would take.
server.preload("pytest", "hypothesis", "hypothesis.strategies", "torch.distributed.optim")

_terminal = pytest.StashKey[int]()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Of seven thousand tests none is garbage: they are out of the collector's sight, now and till the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem() -> Iterator[Any]:
    """Of a function's many tests some may take turns."""
    made = yield
    if isinstance(made, list):
        if str(ROOT) not in sys.path:
            sys.path.insert(0, str(ROOT))
        from tests import turns

        turns.spread([one for one in made if isinstance(one, pytest.Function)])
    return made


@pytest.hookimpl(trylast=True)  # what -m and -k leave out does not wait
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what this machine cannot run, and say what is missing; give a slow machine more time."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from tests import optional_programs

    for item in items:
        if reason := optional_programs.missing_for(item):
            item.add_marker(pytest.mark.skip(reason=reason))
    for item in items if SLOWNESS > 1 else ():  # for the others tools/test.py gives the limit
        if limit := item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(limit.args[0] * SLOWNESS), append=False)
    waiting = {item: reason for item in items if (reason := why_it_waits(item))}
    items[:] = [item for item in items if item not in waiting]
    config.hook.pytest_deselected(items=list(waiting))
    if os.environ.get("DTCOURSE_TEST_TURNS_END"):
        in_the_order_of_their_turns(items)
    config.waiting = dict(collections.Counter(waiting.values()))
    if hasattr(config, "workeroutput"):  # xdist's way to the process that reports
        config.workeroutput["waiting"] = config.waiting


def why_it_waits(item: pytest.Item) -> str:
    """Why a test is left out of this run; empty where it is not."""
    if str(ROOT) not in sys.path:
        sys.path.insert(0, str(ROOT))
    from tests import rotation

    marker = item.get_closest_marker("stands_on")
    if marker is None:
        return rotation.why_others_are_enough(item.nodeid)
    # A module that is marked as a whole, since its tests share what is slow, takes its turn as a whole.
    name = item.nodeid if marker in item.own_markers else item.path.name
    turn = {"place": zlib.crc32(name.encode()), **marker.kwargs}
    turn.pop("early", None)
    own = (file_of(item), "requirements.lock", *marker.args)
    return rotation.why_it_waits(files=own, **turn)


def file_of(item: pytest.Item) -> str:
    """A test's file, from the repository's top."""
    return item.path.relative_to(ROOT).as_posix()


def in_the_order_of_their_turns(items: list[pytest.Item]) -> None:
    """What is most worth its time begins first, since at the end of that time the others wait (tests/rotation.py)."""
    from tests import rotation

    def first(item: pytest.Item, mark: pytest.Mark | None) -> int:
        if mark is None:
            return int(rotation.is_about_a_change(file_of(item)))
        share = mark.kwargs.get("share", rotation.HALF)
        return rotation.urgency(mark.args, "early" in mark.kwargs, share)

    marks = [item.get_closest_marker("stands_on") for item in items]
    tests = [
        (item.nodeid, mark not in item.own_markers, first(item, mark))
        for item, mark in zip(items, marks, strict=True)
    ]
    order = rotation.order(tests)
    begin = [number for number in order if tests[number][2]]
    parts = int(os.environ.get(rotation.PARTS) or 1)
    items[:] = [items[number] for number in rotation.dealt(begin, order[len(begin) :], parts)]


@pytest.hookimpl(tryfirst=True)  # before its fixtures start a cluster or a browser
def pytest_runtest_setup(item: pytest.Item) -> None:
    """What takes turns, executes notebooks or is about nothing that has changed waits where it is late."""
    if os.environ.get("DTCOURSE_TEST_TURNS_END"):
        from tests import rotation

        # Those that execute notebooks are about everything, and the longest.
        marked = item.get_closest_marker("stands_on") or item.get_closest_marker("notebooks")
        may_wait = marked or not rotation.is_about_a_change(file_of(item))
        stands_on = item.get_closest_marker("stands_on")
        files = stands_on.args if stands_on else ()
        if may_wait and (reason := rotation.why_too_late(files)):
            pytest.skip(reason)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the terminal's own stderr of an xdist worker: what a test prints there is caught."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if hasattr(config, "workerinput") and capture is not None:
        with capture.global_and_fixture_disabled():
            config.stash[_terminal] = os.dup(2)


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool | None:
    """In an xdist worker, whose own words nobody hears, print the stacks of a test past its limit, and end the worker.

    faulthandler does that also where compiled code holds the interpreter. Without xdist pytest-timeout does it.
    """
    terminal = item.config.stash.get(_terminal, None)
    if terminal is None:
        return None
    faulthandler.dump_traceback_later(settings.timeout, exit=True, file=terminal)
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """The other half of the above."""
    if item.config.stash.get(_terminal, None) is None:
        return None
    faulthandler.cancel_dump_traceback_later()
    return True


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium to drive."""
    from tests import optional_programs

    optional_programs.require("browser")
    return str(optional_programs.find_chromium())


@pytest.fixture(scope="session")
def root() -> Path:
    """The top of the repository."""
    return ROOT


def living_ranks() -> dict[int, str]:
    """Processes that this session's tests started and that still run: number -> command.

    multiprocessing's own two helpers are meant to outlive a launch: the resource tracker, and the
    fork server, which is a child of the test process. So are this process's template and spares.
    All else below the server is a rank.
    """
    standby = sys.modules.get("dtcourse.launch.standby")
    waiting = standby.pids() if standby else set()
    found = {}
    for process in psutil.process_iter():
        try:
            if process.pid in {os.getpid(), *waiting} or process.status() == psutil.STATUS_ZOMBIE:
                continue
            if process.environ().get(MARK) != os.environ[MARK]:
                continue
            command = " ".join(process.cmdline())
            if "multiprocessing.resource_tracker" in command:
                continue
            if "multiprocessing.forkserver" in command and process.ppid() == os.getpid():
                continue
            found[process.pid] = command[:600]
        except psutil.Error:  # gone meanwhile, or another user's
            continue
    return found


@pytest.fixture(autouse=True, scope="module")
def no_process_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """After the last test of a module, nothing that it started may still run."""
    before = living_ranks()
    yield
    # A rank that has answered needs a moment to leave: an interpreter with torch in it,
    # seconds where all cores are busy.
    patience = time.monotonic() + 15.0 * SLOWNESS
    while left := {pid: name for pid, name in living_ranks().items() if pid not in before}:
        if time.monotonic() > patience:
            break
        time.sleep(0.05)
    for pid in left:
        try:
            psutil.Process(pid).kill()  # so that the next module is judged on its own
        except psutil.Error:
            continue
    lines = "\n".join(f"  {pid}: {name}" for pid, name in left.items())
    assert not left, f"{request.node.name} left processes behind:\n{lines}"
