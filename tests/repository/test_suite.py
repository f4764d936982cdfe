"""`make test` tells what it knows, however a stage ends: it passes, fails, hangs, crashes or is ended."""

from __future__ import annotations

import collections
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest

from tests.turns import takes_turns

ROOT = Path(__file__).resolve().parent.parent.parent

# Most of the time goes into starting pytest again and again, which a busy machine stretches.
pytestmark = pytest.mark.timeout(1200)
OF_THE_SUITE = pytest.mark.stands_on(
    "tools/",
    "tests/conftest.py",
    "tests/rotation.py",
    "tests/subjects.py",
    "tests/turns.py",
    "pyproject.toml",
)


def write_notebook(path: Path, source: str, output: str, cells: int = 1) -> None:
    notebook = nbformat.v4.new_notebook()
    for number in range(cells):
        cell = nbformat.v4.new_code_cell(source, execution_count=number + 1)
        cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)]
        notebook.cells.append(cell)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    path.parent.mkdir(exist_ok=True)
    nbformat.write(notebook, path)


def stages(project, *names: str, workers: int = 1, **environment: str):
    return project.run(
        sys.executable, "tools/test.py", *names, DTCOURSE_TEST_WORKERS=str(workers), **environment
    )


def part(output: str, title: str) -> str:
    """What stands below a title, up to the next."""
    return output.split(f"\n== {title}\n")[1].split("\n== ")[0]


MIXED = """
import os, pytest

def is_for_throughput():
    return hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_BATCH

def test_passes():
    assert is_for_throughput() == hasattr(os, "SCHED_BATCH")
    assert os.environ["OMP_WAIT_POLICY"] == "passive"

@pytest.mark.timing
def test_is_timed():
    assert os.environ["PYTEST_XDIST_WORKER_COUNT"] == "1", "timing tests run one by one"
    assert not is_for_throughput() and "OMP_WAIT_POLICY" not in os.environ, "it measures what users have"

@pytest.mark.skip(reason="not here")
def test_is_skipped():
    pass

@pytest.mark.notebooks
def test_runs_a_notebook():
    pass

@pytest.mark.stands_on("README.md")
def test_waits():
    raise AssertionError("it is none of the fixed set")

def test_fails():
    print("found in its output")
    x = {x}
    assert x == 4, "the sum"
"""


@pytest.mark.slow
@OF_THE_SUITE
def test_the_stages_add_up_and_a_failure_shows(project):
    project.write("test_mixed.py", MIXED.format(x=4))
    write_notebook(project.folder / "lessons" / "01-a.ipynb", "print(1 + 1)", "2\n")
    nbval = {"PYTEST_PLUGINS": "xdist.plugin,pytest_timeout,nbval.plugin"}
    done = stages(project, **nbval)
    assert done.returncode == 0, done.stdout + done.stderr
    # two unit tests, one timed, one notebook test; the lesson's one cell
    assert done.stdout.splitlines()[-1] == "5 passed, 0 failed, 1 skipped"
    assert part(done.stdout, "failed") == ""
    assert "    1  unit       not here" in part(done.stdout, "skipped")
    [waiting] = part(done.stdout, "left out").splitlines()
    assert waiting.startswith("    1  unit       not its turn: ")

    project.write("test_mixed.py", MIXED.format(x=3))
    write_notebook(project.folder / "lessons" / "01-a.ipynb", "print(1 + 1)", "3\n")
    done = stages(project, "unit", "timing", "notebooks", workers=0, **nbval)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "2 passed, 2 failed, 1 skipped"
    assert "timing         1 passed" in done.stdout  # it ran although the stage before failed
    stage = done.stdout.split("\n== ")[1]
    assert stage.startswith("unit") and stage.count('assert x == 4, "the sum"') == 1
    assert "found in its output" in stage
    assert "    1  unit       not its turn: " in part(done.stdout, "left out")  # without xdist, too
    failed = part(done.stdout, "failed")
    assert "unit       tests/test_mixed.py::test_fails\n" in failed
    assert "           AssertionError: the sum assert 3 == 4\n" in failed
    assert "notebooks  lessons/01-a.ipynb::Cell 0\n" in failed
    assert "unit       tests/test_mixed.py::test_passes" in part(done.stdout, "slowest")


@pytest.mark.slow
def test_a_stage_that_breaks_before_any_test_counts_as_failed(project):
    project.write("test_broken.py", "import no_such_module\n")
    done = stages(project, "timing")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
    assert "No module named 'no_such_module'" in part(done.stdout, "failed")


@pytest.mark.slow
@takes_turns("tools/")
def test_a_stage_of_which_pytest_says_nothing_counts_as_failed(project):
    project.write("conftest.py", "raise SystemExit(3)\n")
    done = stages(project, "unit")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
    assert "FAILED, pytest ended with" in part(done.stdout, "summary")


HANGS = """
import subprocess, sys, time
import pytest

@pytest.mark.parametrize("number", range(3))
def test_passes(number):
    pass

def test_fails():
    assert 10.75 < 10.5, "milliseconds"

def test_hangs():
    # A server as tests start them: in a session of its own. Ctrl-C alone does not end this one.
    server = "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep({seconds})"
    subprocess.Popen([sys.executable, "-c", server], start_new_session=True)
    open("{sign}", "w").close()
    while True:
        try:
            time.sleep(1)
        except KeyboardInterrupt:
            pass

def test_after_it():
    pass
"""


def still_running(seconds: float) -> list[str]:
    """Servers of HANGS, by their number of seconds."""
    found = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if f"SIG_IGN); time.sleep({seconds})" in command:
            found.append(command)
    return found


def tells_what_it_knew(out: str) -> None:
    """Of HANGS and a second file, cut short in the test that hangs."""
    # the one that hung is the second
    assert out.splitlines()[-1] == "3 passed, 2 failed, 0 skipped"
    assert 'assert 10.75 < 10.5, "milliseconds"' in out.split("\n== ")[1]  # when it happened
    failed = part(out, "failed")
    assert "unit       tests/test_hangs.py::test_fails\n" in failed
    assert "AssertionError: milliseconds assert 10.75 < 10.5\n" in failed
    assert "unit       tests/test_hangs.py::test_hangs\n           under way for " in failed
    assert "unit       never started: tests/test_hangs.py::test_after_it\n" in failed
    assert "unit       never started: tests/test_nothing_ran.py, all 2 tests\n" in failed
    assert "1 under way, 3 never started" in part(out, "summary")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "workers"), [pytest.param("SIGINT", 0, marks=OF_THE_SUITE), ("SIGTERM", 1)]
)
def test_asked_to_end_it_ends_all_that_it_started_and_tells_what_it_knew(project, name, workers):
    sign, seconds = project.folder / "hangs", 71.5 + workers
    project.write("test_hangs.py", HANGS.format(seconds=seconds, sign=sign))
    project.write("test_nothing_ran.py", "def test_a(): pass\n\ndef test_b(): pass\n")
    process = project.start(
        sys.executable, "tools/test.py", "unit", "timing", DTCOURSE_TEST_WORKERS=str(workers)
    )
    record = project.folder / "build" / "reports" / "unit.jsonl"
    # The test before it has failed in another process: on a busy machine that is told later than the next one begins.
    while process.poll() is None and not (sign.exists() and '"failed"' in record.read_text()):
        time.sleep(0.1)
    assert still_running(seconds)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.Signals[name])
    out, errors = process.communicate(timeout=600)
    assert process.returncode == 128 + signal.Signals[name], out + errors
    tells_what_it_knew(out)
    assert f"FAILED, stopped by {name}" in part(out, "summary")
    assert "timing     never started" in part(out, "summary")
    assert not still_running(seconds)
    assert not [one for one in started if one.is_running() and one.status() != "zombie"]


@pytest.mark.slow
@takes_turns("tools/")
def test_a_stage_at_its_limit_is_ended_and_the_next_one_runs(project):
    sign = project.folder / "hangs"
    project.write("test_hangs.py", HANGS.format(seconds=75.5, sign=sign))
    project.write("test_nothing_ran.py", "def test_a(): pass\n\ndef test_b(): pass\n")
    project.write("test_timed.py", MIXED.split("@pytest.mark.skip")[0])
    until = time.time() + 15 * float(os.environ.get("DTCOURSE_TEST_SLOWNESS", "1"))
    done = stages(project, "unit", "timing", DTCOURSE_TEST_UNTIL=str(until), workers=0)
    assert done.returncode == 1
    assert "FAILED, ended at its limit of " in part(done.stdout, "summary")
    assert "timing     " in part(done.stdout, "summary")
    assert not still_running(75.5)
    record = project.folder / "build" / "reports" / "unit.jsonl"
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    if sign.exists():  # else this machine was too slow to come so far
        assert [line["test"] for line in lines if line.get("outcome") == "failed"] == [
            "tests/test_hangs.py::test_fails"
        ]
        assert "test_hangs\n           under way for" in part(done.stdout, "failed")


CRASHES = """
import os, signal, time
import pytest

def test_before():
    pass

def test_crashes():
    os.kill(os.getpid(), signal.SIGKILL)

@pytest.mark.timeout(1)
def test_takes_too_long():
    time.sleep(600)

def test_after():
    pass
"""


@pytest.mark.slow
def test_a_worker_that_dies_costs_the_test_it_was_in_and_no_other(project):
    project.write("test_crashes.py", CRASHES)
    done = stages(project, "unit", workers=1)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "2 passed, 2 failed, 0 skipped"
    failed = part(done.stdout, "failed")
    assert "tests/test_crashes.py::test_crashes\n           worker 'gw0' crashed while" in failed
    assert "tests/test_crashes.py::test_takes_too_long\n           worker 'gw1' crashed" in failed
    assert "in test_takes_too_long" in done.stderr  # where it was, when its time was over


@pytest.mark.slow
@takes_turns("tools/")
def test_pytest_itself_killed_still_leaves_its_record(project):
    project.write("test_crashes.py", CRASHES)
    done = stages(project, "unit", workers=0)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "1 passed, 1 failed, 0 skipped"
    assert "FAILED, pytest ended with -9, 1 under way, 2 never started" in done.stdout
    assert "never started: tests/test_crashes.py::test_after\n" in part(done.stdout, "failed")


def test_an_unknown_stage_is_named(project):
    done = stages(project, "units")
    assert done.returncode == 1
    assert done.stderr.startswith("No stage units; there are unit, timing, ")


# --- limits -----------------------------------------------------------------------------------------------------


@pytest.fixture
def tool(monkeypatch):
    """tools/test.py as a module."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    spec = importlib.util.spec_from_file_location("tools_test", ROOT / "tools" / "test.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "tools_test", module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_every_lesson_is_executed_that_is_about_a_change_and_the_others_take_turns(
    tool, monkeypatch, request
):
    lessons, solutions = (
        {path.name for path in ROOT.glob(f"{kind}/*.ipynb")} for kind in ("lessons", "solutions")
    )
    assert lessons == solutions
    names = {"lessons": lessons, "solutions": solutions}
    monkeypatch.setattr(
        tool.rotation, "changed", lambda: ["dtcourse/course/checks/lesson_02_x/a.py"]
    )
    tool.rotation.is_about_a_change.cache_clear()
    request.addfinalizer(tool.rotation.is_about_a_change.cache_clear)
    monkeypatch.setattr(tool.rotation, "passed_bare", frozenset)
    monkeypatch.setenv("DTCOURSE_TEST_SHARE", "drawn")
    runs = []
    for draw in ("0", "1", "2"):
        monkeypatch.setenv("DTCOURSE_TEST_DRAW", draw)
        tried, waiting = tool.notebooks()
        assert tried[0].startswith("lessons/02-"), "what is about a change comes first"
        assert sum(waiting.values()) == len(names["lessons"]) + len(solutions) - len(tried) > 0
        assert {reason.partition(":")[0] for reason in waiting} == {
            "lessons, not its turn",
            "solutions, not its turn",
        }
        runs.append(set(tried))
    assert len(set().union(*runs)) == len(lessons) + len(solutions), "in three runs"
    changed = {name for name in runs[0] | runs[1] if name.startswith("solutions/02")}
    assert len(changed) == 1, "where something has changed, in two"
    monkeypatch.setenv("DTCOURSE_TEST_SHARE", "fixed")
    listed = tool.notebooks()[0]
    assert sorted(listed) == sorted(f"lessons/{name}" for name in lessons)
    seconds = [tool.seconds_of(name) for name in listed]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 0


@pytest.mark.parametrize(("name", "stage"), [("timing", "timing"), ("notebooks", "parameters")])
def test_a_stage_of_few_tests_is_given_the_files_that_have_them(tool, name, stage):
    """A mark that a file takes over from elsewhere would be missed."""
    helpers = set((ROOT / "tests").rglob("*.py")) - set((ROOT / "tests").rglob("test_*.py"))
    assert not [path for path in helpers if f"mark.{name}" in path.read_text(encoding="utf-8")]
    (given,) = (one.arguments for one in tool.stages("drawn") if one.name == stage)
    assert "tests" not in given and len(tool.marked(name)) > 1


@pytest.mark.parametrize("share", ["fixed", "drawn", "all"])
def test_every_stage_has_its_usual_minutes(tool, share):
    assert {stage.name: stage.usual for stage in tool.stages(share)} == tool.USUAL[share]
    ends = {stage.name: stage.ends for stage in tool.stages(share) if stage.ends}
    assert ends == (tool.ENDS if share == "drawn" else {})


TURNS = """
import time, pytest

@pytest.mark.parametrize("which", range(6))
@pytest.mark.stands_on("tests/")
def test_takes_turns(which):
    time.sleep(0.5)

@pytest.mark.stands_on("tests/", share=(1, 1))
def test_comes_first():
    pass

def test_is_tried_always():
    pass

@pytest.mark.notebooks
@pytest.mark.stands_on("tests/")
def test_another_number_of_ranks():
    pass

@pytest.mark.notebooks
def test_a_notebook():
    pass
"""


@pytest.mark.slow
@OF_THE_SUITE
def test_what_takes_turns_comes_last_and_what_has_not_begun_in_time_waits(project):
    project.write("test_turns.py", TURNS)
    drawn = {"DTCOURSE_TEST_SHARE": "drawn", "DTCOURSE_TEST_DRAW": "0"}
    done = stages(project, "unit", "parameters", "turns", **drawn)
    assert done.stdout.splitlines()[-1] == "10 passed, 0 failed, 0 skipped", done.stdout
    assert "unit           1 passed" in done.stdout and "turns          7 passed" in done.stdout

    tool = project.folder / "tools" / "test.py"
    text = tool.read_text(encoding="utf-8")
    at_once = text.replace('"parameters": 5.0, "turns": 4.0', '"parameters": 1e-9, "turns": 1e-9')
    assert at_once != text
    tool.write_text(at_once, encoding="utf-8")
    done = stages(project, "unit", "parameters", "turns", **drawn)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
    left_out = collections.Counter()
    for line in part(done.stdout, "left out").splitlines():
        number, stage, reason = line.split(maxsplit=2)
        assert reason.startswith("not its turn: the time of a run for such tests was over")
        # No git is here, so all counts as changed: what names what it stands on is told apart.
        left_out[stage, ".ci/landed" in reason] += int(number)
    assert left_out == {
        ("parameters", True): 1,
        ("parameters", False): 1,
        ("turns", True): 7,
    }


MANY = """
import os, time
import pytest

@pytest.mark.parametrize("which", range({number}))
def test_it(which):
    with open("{begun}", "a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], __name__.rpartition(".")[2], file=file)
    time.sleep(0.02)
"""


@pytest.mark.slow
@OF_THE_SUITE
def test_what_is_about_nothing_that_has_changed_is_drawn_and_waits_where_it_is_late(project):
    """In a repository where `sharding` has changed since CI found it good, `compression` and a lesson have not."""
    (project.folder / "tests" / "sharding").mkdir()
    (project.folder / "tests" / "compression").mkdir()
    begun = project.folder / "begun.txt"
    many = MANY.format(number=12, begun=begun)
    project.write("sharding/test_sharding.py", many)
    project.write("compression/test_compression.py", MANY.format(number=60, begun=begun))
    for number in range(6):
        write_notebook(
            project.folder / "lessons" / f"0{number}-a.ipynb", "print(1)", "1\n", cells=2
        )
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "good"]):
        subprocess.run([*git, *words], cwd=project.folder, check=True)
    good = subprocess.run([*git, "rev-parse", "HEAD"], cwd=project.folder, capture_output=True)
    (project.folder / ".ci").mkdir()
    (project.folder / ".ci" / "landed").write_bytes(good.stdout)
    project.write("sharding/test_sharding.py", f"{many}# changed\n")

    drawn = {
        "DTCOURSE_TEST_SHARE": "drawn",
        "PYTEST_PLUGINS": "xdist.plugin,pytest_timeout,nbval.plugin",
    }
    reports, tried = project.folder / "build" / "reports", {}
    for draw in "012":
        begun.unlink(missing_ok=True)
        workers = 2 if draw == "0" else 1
        done = stages(
            project, "unit", "notebooks", workers=workers, DTCOURSE_TEST_DRAW=draw, **drawn
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert f" files have changed since {good.stdout[:8].decode()} (.ci/landed)." in done.stdout
        first = {}  # of each worker
        for worker, test in map(str.split, begun.read_text().splitlines()):
            first.setdefault(worker, test)
        assert list(first.values()) == ["test_sharding"] * workers, first
        tried[draw] = []
        for record in reports.glob("*.jsonl"):
            lines = map(json.loads, record.read_text("utf-8").splitlines())
            tried[draw] += [line["test"] for line in lines if line.get("outcome") == "passed"]
            record.unlink()
        assert sum("sharding" in test for test in tried[draw]) == 12
    others = [test for tests in tried.values() for test in tests if "sharding" not in test]
    assert (
        sorted(others) == sorted(set(others)) and len(others) == 60 + 2 * 6
    )  # each in one of three

    tool = project.folder / "tools" / "test.py"
    text = tool.read_text("utf-8")
    at_once = text.replace('"unit": 26.0, "notebooks": 16.0', '"unit": 1e-9, "notebooks": 1e-9')
    assert at_once != text
    tool.write_text(at_once, "utf-8")
    draw = next(draw for draw, tests in tried.items() if any("lessons" in test for test in tests))
    done = stages(project, "unit", "notebooks", DTCOURSE_TEST_DRAW=draw, **drawn)
    assert done.stdout.splitlines()[-1] == "12 passed, 0 failed, 0 skipped", done.stdout
    late = [line for line in part(done.stdout, "left out").splitlines() if "time of a run" in line]
    assert len(late) == 2  # of each stage
    cells = sum("lessons" in test for test in tried[draw])
    assert late[1].startswith(f"{cells // 2:>5}  notebooks"), (
        "notebooks are counted, not their cells"
    )


def test_a_stage_has_more_time_on_a_slower_machine(tool):
    stages = tool.stages("fixed")
    usual = stages[0].usual * 60
    assert tool.limit(stages, 1.0, None) == pytest.approx(3 * usual)
    assert tool.limit(stages, 2.5, None) == pytest.approx(7.5 * usual)


def test_what_begins_last_comes_to_its_end(tool):
    """On a machine so slow that the longest test takes more than half of a stage, none that may wait begins."""
    stage = tool.Stage("unit", "", [], ends=26.0, longest=100.0)
    assert tool.last_begins(stage, 7200.0, 1.0) == 26 * 60
    assert tool.last_begins(stage, 1800.0, 1.0) == 900
    assert tool.last_begins(stage, 1800.0, 12.0) == 600
    assert tool.last_begins(stage, 1800.0, 20.0) == 0
    longest = {one.name: one.longest for one in tool.stages("drawn")}
    tried = tool.notebooks()[0]
    assert longest["unit"] == longest["turns"] == tool.LONGEST
    assert longest["notebooks"] == longest["parameters"] >= max(map(tool.seconds_of, tried)) > 0


@pytest.mark.parametrize("share", ["fixed", "drawn"])
@pytest.mark.parametrize("minutes", [84, 60, 20])
def test_all_stages_together_end_in_time_and_what_the_later_ones_need_is_theirs(
    tool, monkeypatch, share, minutes
):
    left, now = tool.stages(share), 1000.0
    monkeypatch.setattr(tool.time, "time", lambda: now)
    until = now + minutes * 60
    while left:
        first, *later = [one.usual * 60 for one in left]
        seconds = tool.limit(left, 20.0, until)
        kept = until - now - seconds
        # their usual minutes, or of too little time their share
        assert kept >= min(sum(later), (until - now) * sum(later) / (first + sum(later))) - 1
        assert seconds > 0
        now += seconds  # each takes all that it may
        left.pop(0)
    assert now <= until + 1


@pytest.mark.parametrize("told", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("slow", ["unit", "notebooks", "turns", ""])
def test_where_the_whole_fits_no_stage_is_cut(tool, monkeypatch, told, slow):
    """84 minutes, of which six are gone before, on a machine twice as slow as usual: whatever is measured of it, and
    where one stage alone takes all that the others leave."""
    left, now = tool.stages("drawn"), 1000.0
    monkeypatch.setattr(tool.time, "time", lambda: now)
    until = now + (84 - 6) * 60
    takes = {one.name: one.usual * 60 * 2 for one in left}
    if slow:
        takes[slow] += until - now - sum(takes.values())
    assert sum(takes.values()) <= until - now
    while left:
        assert takes[left[0].name] <= tool.limit(left, told, until) + 1e-6
        now += takes[left.pop(0).name]
    assert now <= until


def test_a_stage_that_is_done_early_leaves_its_time_to_the_next(tool, monkeypatch):
    stages, now = tool.stages("fixed"), 1000.0
    monkeypatch.setattr(tool.time, "time", lambda: now)
    until = now + 60 * 60
    at_best, _ = tool.limit(stages[1:], 20.0, until), stages
    now = until - tool.limit(stages, 20.0, until)  # ...and one that takes all leaves less
    assert tool.limit(stages[1:], 20.0, until) < at_best


@takes_turns("tools/")
def test_busy_cores_count_as_a_slow_machine(monkeypatch):
    """Twice as many busy processes as cores beside the measurement: it takes at least half as long again as without."""
    monkeypatch.syspath_prepend(ROOT / "tools")
    import machine

    loop = [sys.executable, "-c", "while True: pass"]
    for _ in range(5):  # what else runs here comes and goes
        alone = machine.seconds(1)
        busy = [subprocess.Popen(loop) for _ in range(2 * os.cpu_count())]
        try:
            beside = machine.seconds(1)
        finally:
            for process in busy:
                process.kill()
                process.wait()
        if beside > 1.5 * alone:
            return
    pytest.fail(f"{alone:.2f} s alone, {beside:.2f} s beside {len(busy)} busy processes")
