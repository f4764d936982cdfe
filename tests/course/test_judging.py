"""Answers right, wrong, hanging, dying and hostile: each ends in a verdict and a sentence."""

import io
import os
import re
import textwrap
from contextlib import contextmanager

import psutil
import pytest

from dtcourse.course.grading import check_in, check_notebook
from dtcourse.course.judging import bubblewrap, framework, limits, process, requirements
from dtcourse.course.judging.defining import define
from dtcourse.course.judging.process import MARK
from dtcourse.course.judging.runs import InKernel, plain
from dtcourse.course.judging.sandbox import MODULES, Sandbox
from dtcourse.course.judging.taking import take
from tests import optional_programs
from tests.course.conftest import ROOT, SAMPLES
from tests.course.samples import (
    DOUBLE,
    ENDS,
    ENDS_SOON,
    GOOD,
    IMPORTS,
    SHIFT,
    _is_there,
    notebook,
)

pytestmark = pytest.mark.timeout(240)


def report(*cells, exercise=SHIFT, **options):
    return check_notebook(notebook(*cells), [exercise], **options)[0]


def double(body: str, exercise=DOUBLE, **options):
    return report("def double(n):\n" + textwrap.indent(body, "    "), exercise=exercise, **options)


class Shared:
    """A process for the answers of many tests, one after the other, since it takes seconds to start."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox, self.marks = sandbox, set()

    def report(self, *cells, exercise=SHIFT):
        (found,) = check_in(self.sandbox, notebook(*cells), [exercise])
        if self.sandbox.process is not None:
            assert self.sandbox.process.mark
            self.marks.add(self.sandbox.process.mark)
        return found


@pytest.fixture(scope="module")
def shared():
    """Nothing is left of any of them in the end."""
    modules = {**MODULES, SAMPLES: ROOT / SAMPLES}
    with Sandbox(3600, modules=modules, confined=not bubblewrap.why_not()) as sandbox:
        found = Shared(sandbox)
        yield found  # a worker may have of these tests only one that starts none
    assert not [p for p in psutil.process_iter() if _mark(p) in found.marks]


def _mark(process) -> str:
    """Of the sandbox that a living process belongs to."""
    try:
        alive = process.status() != psutil.STATUS_ZOMBIE
        return process.environ().get(MARK, "") if alive else ""
    except psutil.Error:
        return ""


@contextmanager
def no_process_left():
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    yield
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert not [p for p in left if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.slow
def test_a_right_answer_earns_its_points():
    with no_process_left():
        found = report(IMPORTS, "while True: pass", GOOD, 'check("shift", shift)')
    assert found.passed and found.points == SHIFT.points == 4
    assert "2 of 2 checks, 4 of 4 points" in str(found)


@pytest.mark.slow
def test_a_deadlock_ends_in_a_sentence_and_no_process_stays():
    blocking = GOOD.replace("sending = p2p.isend(tensor, (rank + 1) % size)", "").replace(
        "sending.wait()", ""
    )
    with no_process_left():
        found = report(IMPORTS, blocking)
    assert found.points == 0 and len(found.verdicts) == 1
    assert "they wait for each other" in found.verdicts[0].sentence.lower()
    assert "recv" in found.verdicts[0].sentence and "(not tried)" in str(found)


@pytest.mark.slow
def test_a_wrong_answer_is_told_what_was_expected(shared):
    left = GOOD.replace("(rank + 1)", "(rank - 1)").replace(
        "recv(received, (rank - 1)", "recv(received, (rank + 1)"
    )
    found = shared.report(IMPORTS, left)
    assert not found.passed
    assert "should hold what its left neighbour had" in found.verdicts[0].sentence


@pytest.mark.slow
def test_an_answer_is_on_the_ranks_alone_that_it_is_known_to(shared):
    assert shared.report("def double(n): return 2 * n", exercise=DOUBLE).passed
    assert list(shared.sandbox.run(_is_there, 2, known_to=[0])) == [True, False]
    assert list(shared.sandbox.run(_is_there, 2)) == [True, True]


WRONG = [
    ("return 2 * n + 1", "should be"),
    ("return None", "should be"),
    ("return object()", "A object came back"),
    ("raise ValueError('odd')", "ValueError: odd (cell 1 of your notebook, line 2)"),
    ("import os; os._exit(0)", "left with exit code 0"),
    ("import os; os.kill(os.getpid(), 9)", "SIGKILL"),
    ("print('2 of 2 checks, 2 of 2 points'); return 0", "should be"),
]


@pytest.mark.slow
def test_wrong_dying_and_boasting_answers_one_after_the_other(shared):
    for body, sentence in WRONG:
        found = shared.report(f"def double(n):\n    {body}", exercise=DOUBLE)
        assert found.points == 0 and not found.passed, body
        assert sentence in found.verdicts[0].sentence, body


@pytest.mark.parametrize(
    "expression", ["- " * 500 + "n", " + ".join(["n"] * 400), "n" + ".real" * 600]
)
def test_a_text_that_python_does_not_get_through_is_its_authors_own(expression):
    """Neither a traceback, nor a failure of the judge's that costs nothing."""
    found = double(f"return {expression}")
    assert "Python does not get through what double needs (RecursionError)" in found.refused
    assert (found.points, found.possible) == (0, DOUBLE.points)


def test_an_untouched_exercise_fails_politely():
    found = double("# YOUR CODE HERE\nraise NotImplementedError()")
    assert found.unfinished.startswith("`double` is not written yet") and not found.verdicts
    assert "Traceback" not in str(found) and DOUBLE.target in str(found)


@pytest.mark.slow
def test_a_notebook_has_one_process_and_one_that_is_not_begun_has_none(monkeypatch):
    started = []
    start = Sandbox._start
    monkeypatch.setattr(Sandbox, "_start", lambda self: started.append(self) or start(self))
    unwritten = "def double(n):\n    raise NotImplementedError()"
    assert not any(r.passed for r in check_notebook(notebook(unwritten), [DOUBLE, DOUBLE]))
    assert not started
    written = notebook(IMPORTS, GOOD, "def double(n): return 2 * n")
    assert all(r.passed for r in check_notebook(written, [DOUBLE, SHIFT, DOUBLE]))
    assert len(started) == 1


@pytest.mark.slow
@pytest.mark.parametrize("written", [True, False])
def test_the_process_starts_beside_the_import_of_the_checks_where_there_is_an_answer(
    monkeypatch, written
):
    started = []
    start = Sandbox._start
    monkeypatch.setattr(Sandbox, "_start", lambda self: started.append(self) or start(self))
    body = "return 2 * n" if written else "raise NotImplementedError()"
    loaded = []

    class Outline(framework.Exercise):
        def load(self):
            loaded.append(bool(started))
            return DOUBLE

    outline = Outline(DOUBLE.name, DOUBLE.lesson, DOUBLE.title, DOUBLE.takes, DOUBLE.target)
    with no_process_left():
        (found,) = check_notebook(notebook(f"def double(n):\n    {body}"), [outline])
    assert loaded == ([True] if written else []) and len(started) == written
    assert bool(found.verdicts) == written and bool(found.unfinished) != written


@pytest.mark.slow
def test_a_process_that_nobody_needed_in_the_end_leaves_nothing():
    exercise = framework.Exercise(
        "double", "00", "x", ("double",), "2 times", forbidden=("math.ldexp",), checks=DOUBLE.checks
    )
    copy = notebook("import math\ndef double(n): return math.ldexp(n, 1)")
    with no_process_left():
        (found,) = check_notebook(copy, [exercise])
    assert "uses math.ldexp" in found.refused


@pytest.mark.slow
def test_an_answer_that_reached_outside_or_died_does_not_spoil_the_next(monkeypatch):
    """Nobody else's process: the next exercise's is a new one."""
    optional_programs.require("bubblewrap")
    started = []
    start = Sandbox._start
    monkeypatch.setattr(Sandbox, "_start", lambda self: started.append(self) or start(self))
    code = "import os\ndef double(n):\n    os.makedirs('/usr/x')"
    first, second = check_notebook(notebook(IMPORTS, GOOD, code), [DOUBLE, SHIFT])
    assert first.attempts == ["It tried to write to /usr/x."]
    assert "Read-only file system: '/usr/x'" in first.verdicts[0].sentence
    assert second.passed and not second.attempts and len(started) == 2


def test_a_sandbox_that_does_not_start_is_no_fault_of_the_answer(monkeypatch, tmp_path):
    monkeypatch.setattr("dtcourse.course.judging.process._CODE", "raise OSError('no room')")
    with pytest.raises(ValueError, match="the sandbox did not start: OSError: no room"):
        report("def double(n): return 2 * n", exercise=DOUBLE)


def test_a_process_that_the_system_has_no_room_for_is_no_fault_of_the_answer(monkeypatch):
    def refused(*_, **__):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(process.subprocess, "Popen", refused)
    before = set(os.listdir("/dev/fd"))
    with pytest.raises(requirements.NoSandbox, match="Resource temporarily unavailable"):
        report("def double(n): return 2 * n", exercise=DOUBLE, confined=False)
    # What another test has left to the collector may be closed meanwhile.
    assert set(os.listdir("/dev/fd")) <= before, "no pipe stays open"


@pytest.fixture
def impatient(monkeypatch):
    """What never ends needs no longer on a busy machine; the load there is also what another test has left behind."""
    monkeypatch.setattr(limits, "patience", lambda seconds: seconds)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_loop_for_ever_is_stopped_at_the_time_limit():
    with no_process_left():
        found = report("def all_gather():\n    while True: pass", exercise=ENDS_SOON)
    assert re.search(r"had not returned after \d+ s", found.verdicts[0].sentence)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "hint", "exercise"),
    [
        ("    while True: pass", "Does a loop in it ever end?", ENDS_SOON),
        (
            "    dist.irecv(torch.ones(1), 1 - dist.get_rank()).wait()",
            "They wait for each other",
            ENDS,
        ),
    ],
    ids=["loops", "waits"],
)
@pytest.mark.parametrize("in_kernel", [True, False])
@pytest.mark.usefixtures("impatient")
def test_who_loops_and_who_waits_is_told_by_the_stacks_not_by_names(
    body, hint, exercise, in_kernel, shared
):
    code = f"def all_gather():\n{body}"
    if in_kernel:
        functions = define(take(notebook(IMPORTS, code), ("all_gather",)), ("all_gather",))
        found = framework.judge(exercise, InKernel(functions))
    else:
        found = shared.report(IMPORTS, code, exercise=exercise)
    assert hint in found.verdicts[0].sentence.splitlines()[-1], str(found)
    assert body.strip() in str(found)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_code_that_loops_while_it_is_defined_is_stopped_too():
    found = report(
        "def spin():\n    while True: pass",
        "K = spin()",
        "def double(n): return 2 * n * bool(K)",
        exercise=DOUBLE,
        limit=4,
    )
    assert "was stopped" in found.verdicts[0].sentence


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_output_without_end_is_stopped_at_the_time_limit():
    found = double("    while True: print('x' * 4096)".strip())
    assert found.points == 0 and "not returned" in found.verdicts[0].sentence


@pytest.mark.slow
def test_a_result_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(process, "LARGEST", 4 << 20)
    found = double("import torch\nreturn torch.zeros(8 << 20, dtype=torch.uint8)")
    assert found.points == 0
    assert "The answer sent back 8 MB; 4 is the most." in found.verdicts[0].sentence


@pytest.mark.slow
def test_counters_changed_from_inside_are_noticed(shared):
    found = shared.report(
        IMPORTS,
        "def shift(tensor):\n    module = [p2p][0]\n    setattr(module, 'isend', print)\n    return tensor",
    )
    assert "changes what measures it" in found.refused and found.points == 0


# --- hostile: what the static refusal does not see still cannot change a verdict ---------------------------------

HOSTILE = {  # the last one ends the process that is shared, too
    "patches the framework where it runs": """
        import sys
        checks = (lambda thing: getattr(thing, 'mod' + 'ules'))(sys)['dtcourse.' + 'course.judging.framework']
        setattr(checks, 'require', lambda *a: None)
        setattr(checks, 'CheckFailed', KeyError)
        return 0""",
    "patches what measures it": """
        import sys
        runs = (lambda thing: getattr(thing, 'mod' + 'ules'))(sys)['dtcourse.' + 'course.judging.runs']
        setattr(runs, 'plain', lambda value, depth=0: None)
        return 0""",
    "returns a number that says it equals all others": """
        class Yes(int):
            def __eq__(self, other): return True
            def __ne__(self, other): return False
            __hash__ = int.__hash__
        return Yes(1)""",
    "returns an object whose unpickling would run code": """
        import os
        class Bomb:
            def __reduce__(self): return (os._exit, (0,))
        return Bomb()""",
    "writes to every open file": """
        import os
        for fd in range(3, 64):
            try: os.write(fd, b'\\0' * 7 + b'\\x10' + b'verdict: passed.')
            except OSError: pass
        return 0""",
    "ends every process that it can see": """
        import os, signal
        end = (lambda thing: getattr(thing, 'ki' + 'll'))(os)
        for pid in sorted(map(int, filter(str.isdigit, os.listdir('/proc'))), reverse=True):
            if pid != os.getpid():
                try: end(pid, 9)
                except OSError: pass
        return 0""",
}
DAEMON = """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                time.sleep(600)
            os._exit(0)
        return 0"""


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_answer_earns_nothing(name, shared):
    if name.startswith("ends every process"):  # and would end the tests
        optional_programs.require("bubblewrap")
    before = (framework.require, framework.CheckFailed)
    code = "def double(n):\n" + textwrap.indent(textwrap.dedent(HOSTILE[name]), "    ")
    found = shared.report(code, exercise=DOUBLE)
    assert found.points == 0 and not found.passed
    assert (framework.require, framework.CheckFailed) == before


@pytest.mark.slow
def test_a_daemon_that_an_answer_leaves_behind_ends_with_the_answers_process(monkeypatch):
    mark = f"a-test-of-{os.getpid()}"  # other workers' sandboxes carry other marks
    monkeypatch.setattr("dtcourse.course.judging.sandbox.secrets.token_hex", lambda _: mark)
    with no_process_left():
        found = double(textwrap.dedent(DAEMON))
    assert found.points == 0 and not found.passed
    assert not [p for p in psutil.process_iter() if _mark(p) == mark]


# What a process that is not to be trusted may say, and what the judge says to that.
REPLIES = [
    (
        "{'values': [0], 'seconds': 1.0, 'traffic_rows': [], 'traffic_calls': [], 'algorithmic': 0, "
        "'event_rows': []}",
        "should be",
    ),
    ("{'failed': 'Passed', 'sentence': 'all is well'}", "all is well"),
    ("{'failed': 'Unjudged', 'sentence': 'it was the judge'}", "✗ twice the number"),
    ("{}", "could not be compared"),
    (
        "{'values': [Bomb()], 'seconds': 1.0}",
        "bytes that are no result",
    ),  # the process ends at that
]


@pytest.mark.slow
def test_a_process_that_is_an_answers_convinces_nobody(tmp_path, monkeypatch):
    """Its requests are answered by code that sends the judge what it likes."""
    lies = f"""
import os, sys, types
from dtcourse.course.judging import serving
class Bomb:
    def __reduce__(self):
        return (os.system, ("touch {tmp_path}/bomb",))
lies = [{", ".join(reply for reply, _ in REPLIES)}]
serving.plain = lambda reply: reply
serving._attempt = lambda request, written: types.SimpleNamespace(**lies.pop(0))
serving.serve(sys.argv[1])
"""
    monkeypatch.setattr(process, "_CODE", lies)
    reports = check_notebook(notebook("def double(n):\n    return 2 * n"), [DOUBLE] * len(REPLIES))
    for found, (_, word) in zip(reports, REPLIES, strict=True):
        assert found.points == 0 and not found.passed and not found.unjudged
        assert word in str(found)
    assert not (tmp_path / "bomb").exists()


@pytest.mark.slow
@pytest.mark.parametrize("confined", [True, False])
def test_an_answer_sees_no_secret_and_a_home_of_its_own(monkeypatch, confined):
    if confined:
        optional_programs.require("bubblewrap")
    monkeypatch.setenv("GITHUB_TOKEN", "s3cret")
    with Sandbox(confined=confined) as sandbox:
        from dtcourse.course.judging.taking import take

        code = "import os\ndef double(n):\n    return [dict(os.environ), os.getcwd()]"
        sandbox.load(take(notebook(code), ("double",)), ("double",))
        from tests.course.samples import _double

        environment, cwd = sandbox.call(_double, 1)
    assert "s3cret" not in str(environment) and "GITHUB_TOKEN" not in environment
    assert environment["HOME"] == cwd != os.path.expanduser("~")
    assert cwd == "/tmp" if confined else not os.path.exists(cwd)


def _fails(*_, **__):
    raise requirements.unjudged(OSError("no room"))


def test_in_a_notebook_the_same_checks_speak_and_a_failure_fails_the_cell(monkeypatch, capsys):
    monkeypatch.setattr(framework, "exercises", lambda lesson=None: {"double": DOUBLE})
    framework.check("double", lambda n: 2 * n)
    assert "✓ twice the number" in capsys.readouterr().out
    with pytest.raises(framework.NotPassed) as caught:
        framework.check("double", lambda n: n)
    assert "should be" in capsys.readouterr().out
    assert caught.value._render_traceback_() == ["Not there yet: see the lines marked ✗."]
    monkeypatch.setattr(InKernel, "call", _fails)
    with pytest.raises(framework.NotPassed, match="Not judged: run this cell again"):
        framework.check("double", lambda n: n)
    assert "  ? This could not be judged" in capsys.readouterr().out
    with pytest.raises(ValueError, match="did you mean 'double'"):
        framework.check("duoble", print)
    with pytest.raises(ValueError, match="got 2 answers"):
        framework.check("double", print, print)
    with pytest.raises(ValueError, match="no exercise takes print"):
        framework.check(print)


def test_only_plain_data_comes_back():
    import numpy as np
    import torch

    value = {"a": [1, (2.0, "x", None, True)], "t": torch.ones(2, requires_grad=True)}
    clean = plain(value)
    assert clean["a"] == value["a"] and not clean["t"].requires_grad
    assert plain(np.float64(2.5)) == 2.5
    assert type(plain(torch.nn.Parameter(torch.ones(1)))) is torch.Tensor
    for none in ({1}, [b"text"]):
        with pytest.raises(framework.CheckFailed, match=r"A (set|bytes) came back"):
            plain(none)


def test_bytes_go_to_an_answer_and_do_not_come_back():
    """The solutions of 25-1 and 25b-2 take files: they passed in the kernel, and failed where answers are graded."""
    import torch

    sent = {"full": b"\x00\xff", "empty": [b""]}
    assert plain(sent, to_answer=True) == sent
    with torch.serialization.safe_globals([bytes]):
        read = torch.load(io.BytesIO(process.frame(sent)[8:]), weights_only=True)
    assert read == sent


def test_a_check_that_cannot_read_the_answer_says_so():
    found = framework.judge(DOUBLE, InKernel({"double": lambda n: "text"}))
    assert found.verdicts[0].sentence.startswith("double(")


def test_a_target_is_a_number():
    with pytest.raises(ValueError, match="stated in numbers"):
        framework.Exercise("x", lesson="00", title="x", takes=("x",), target="fast")
    with pytest.raises(ValueError, match="tuple of function names"):
        framework.Exercise("x", lesson="00", title="x", takes="x", target="1")


@pytest.mark.parametrize(
    ("load", "patience"),
    [(0.3, 5), (2.0, 5), (5.0, 13), (500.0, 30)],
    ids=["idle", "full", "busy", "swamped"],
)
def test_on_a_busy_machine_an_answer_has_longer(monkeypatch, load, patience):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert limits.patience(5) == patience
