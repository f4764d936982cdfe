"""Answers that reach for what is not theirs, put through `dtcourse grade` beside two honest ones.

Nothing of what they try happens, their feedback and the note in points.csv name it,
and the honest ones get their points.
"""

import contextlib
import csv
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from dtcourse.cli import app
from dtcourse.course import notebook as nbfile
from dtcourse.course.judging import limits, sandbox
from dtcourse.course.judging.process import MARK
from dtcourse.course.places import PACKAGE
from tests.course.conftest import ROOT, SAMPLES
from tests.course.samples import DOUBLE, notebook

SECRET = "the-instructors-key"
needs_bubblewrap = pytest.mark.needs("bubblewrap")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(580)]

HONEST = "return 2 * n"
ANSWERS = {
    "writes": """
        import dtcourse, os
        package = os.path.dirname(dtcourse.__file__)
        for path in (HOME + '/pwned', HOME + '/handed-in/graded/points.csv', package + '/device.py'):
            try: open(path, 'w').write('x')
            except OSError: pass
        try: os.remove(HOME + '/handed-in/ana-03.ipynb')
        except OSError: pass
        return 2 * n""",
    "writes-to-the-system": """
        with open('/usr/bin/pwned', 'w') as file:
            file.write('x')
        return 0""",
    "reads": """
        import os
        found = []
        for path in (HOME + '/.ssh/id_ed25519', HOME + '/handed-in/ana-03.ipynb'):
            try: found.append(open(path).read())
            except OSError: pass
        for path in ('/etc/passwd', HOME + '/../elsewhere/solutions/03.ipynb', '/etc/no-such-file'):
            try: found.append(open(path).read())
            except OSError: pass
        for folder in ('/solutions', '/tests/course/mutants', '/.git'):
            try: found += os.listdir(COURSE + folder)
            except OSError: pass
        raise ValueError(f'found {found}')""",
    "calls": """
        import socket
        found = []
        for address in (('127.0.0.1', PORT), ('192.0.2.1', 80)):
            try: found.append(socket.create_connection(address, 2))
            except OSError as error: pass
        try: found.append(socket.gethostbyname('example.com'))
        except OSError: pass
        lane = socket.socket(socket.AF_UNIX)
        try: found.append(lane.connect(chr(0) + LANE))
        except OSError as error: pass
        raise ValueError(f'found {found}')""",
    "fills-the-disk": """
        with open('/tmp/big', 'wb') as file:
            while True:
                file.write(bytes(1 << 24))""",
    "forks-for-ever": """
        import os
        while True:
            try: os.fork()
            except OSError: pass""",
    "takes-all-memory": """
        import os, time
        for _ in range(8):
            if os.fork() == 0: break
        kept = [os.urandom(1 << 20) * 64 for _ in range(6)]
        time.sleep(600)""",
    "outlives-its-parent": """
        import os, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                while True:
                    time.sleep(0.1)
            os._exit(0)
        return 0""",
}
NAMED = [  # what feedback and note have to say
    ("writes", "write to {home}/pwned"),
    ("writes", "write to {home}/handed-in/graded/points.csv"),
    ("writes", "write to /course/dtcourse/device.py"),
    ("writes", "delete {home}/handed-in/ana-03.ipynb"),
    ("writes-to-the-system", "write to /usr/bin/pwned"),
    ("reads", "read {home}/.ssh/id_ed25519"),
    ("reads", "read {home}/handed-in/ana-03.ipynb"),
    ("reads", "read /etc/passwd"),  # not even what everybody may read
    ("reads", "read {elsewhere}/solutions/03.ipynb"),  # another checkout
    ("reads", "list {course}/solutions"),
    ("reads", "list {course}/tests/course/mutants"),
    ("reads", "list {course}/.git"),
    ("calls", "connect to 192.0.2.1:80"),
    ("calls", "look up example.com"),
    ("fills-the-disk", "write more than 512 MB"),
    ("forks-for-ever", "start more than 128 processes"),
    ("takes-all-memory", "use more than 1.5 GB of memory"),
]


def hand_in(folder: Path, student: str, body: str) -> None:
    text = "def double(n):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    folder.mkdir(parents=True, exist_ok=True)
    nbfile.write(notebook(text), folder / f"{student}-03.ipynb")


class Server:
    """Somebody on this machine who would notice a caller: a port and a socket without a file."""

    def __init__(self) -> None:
        self.callers = 0
        self.name = f"dtcourse-test-{os.getpid()}-{id(self)}"
        self.sockets = [socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)]
        self.sockets[1].bind("\0" + self.name)
        self.sockets[1].listen()
        for one in self.sockets:
            threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def close(self) -> None:
        for one in self.sockets:
            one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _serve(self, one: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                one.accept()[0].close()
                self.callers += 1


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """One run of `dtcourse grade` over them all: what it wrote, and what it left."""
    # A folder of its own: a worker that is given these tests in two parts makes all of it twice.
    home = tmp_path_factory.mktemp("machine") / "home"
    home.mkdir()
    folder, server = home / "handed-in", Server()
    names = {
        "HOME": str(home),
        "COURSE": str(PACKAGE.parent),
        "PORT": server.sockets[0].getsockname()[1],
        "LANE": server.name,
    }
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id_ed25519").write_text(SECRET)
    (home.parent / "elsewhere" / "solutions").mkdir(parents=True)
    (home.parent / "elsewhere" / "solutions" / "03.ipynb").write_text(SECRET)
    hand_in(folder, "ana", HONEST)
    hand_in(folder, "zoe", HONEST)
    for student, body in ANSWERS.items():
        for name, value in names.items():
            body = body.replace(name, repr(value))
        hand_in(folder, student, body)
    device = (PACKAGE / "device.py").read_bytes()
    before = set(home.rglob("*"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setitem(sandbox.MODULES, SAMPLES, ROOT / SAMPLES)
        patch.setattr("dtcourse.course.checking.outlines", lambda lesson=None: {"double": DOUBLE})
        patch.setattr(limits, "MEMORY", 3 * 2**29)
        mark = f"hostile-{os.getpid()}"
        patch.setattr("dtcourse.course.judging.sandbox.secrets.token_hex", lambda _: mark)
        result = CliRunner().invoke(app, ["grade", str(folder)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    out = folder / "graded"
    after = {path for path in home.rglob("*") if not path.is_relative_to(out)}
    table = (out / "points.csv").read_text().splitlines()
    server.close()
    return {
        "home": home,
        "server": server,
        "rows": {row["student"]: row for row in csv.DictReader(table)},
        "feedback": {path.stem: path.read_text() for path in (out / "feedback").iterdir()},
        "new": after - before,
        "gone": before - after,
        "device": device,
        "left": [p.pid for p in psutil.process_iter() if _marked(p, mark)],
    }


def _marked(process, mark) -> bool:
    with contextlib.suppress(psutil.Error):
        return process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    return False


@needs_bubblewrap
def test_honest_students_get_their_points_beside_them(graded):
    for student in ("ana", "zoe"):
        row = graded["rows"][student]
        assert (row["points"], row["possible"], row["tried"], row["note"]) == ("2", "2", "0", "")
        assert "2 of 2 points" in graded["feedback"][student]


@needs_bubblewrap
@pytest.mark.parametrize("student", ANSWERS)
def test_they_earn_what_their_numbers_are_worth(graded, student):
    assert graded["rows"][student]["points"] == ("2" if student == "writes" else "0")


@needs_bubblewrap
@pytest.mark.parametrize(("student", "words"), NAMED)
def test_the_attempt_is_named_to_its_author_and_to_the_instructor(graded, student, words):
    home = graded["home"]
    words = words.format(home=home, course=PACKAGE.parent, elsewhere=home.parent / "elsewhere")
    assert f"! It tried to {words}." in graded["feedback"][student]
    assert f"It tried to {words}." in graded["rows"][student]["note"]


@needs_bubblewrap
def test_nothing_of_it_has_happened(graded):
    assert "no-such-file" not in graded["feedback"]["reads"]  # nobody has that
    assert int(graded["rows"]["reads"]["tried"]) == sum(student == "reads" for student, _ in NAMED)
    assert not graded["new"] and not graded["gone"]
    assert not Path("/usr/bin/pwned").exists()
    assert (PACKAGE / "device.py").read_bytes() == graded["device"]
    said = graded["feedback"]
    assert "found []" in said["reads"] and "found []" in said["calls"]
    assert SECRET not in str(said) + str(graded["rows"])
    assert graded["server"].callers == 0
    assert not graded["left"]
    assert "Read-only file system: '/usr/bin/pwned'" in said["writes-to-the-system"]
    assert "No space left on device" in said["fills-the-disk"]
    assert "was stopped" in said["takes-all-memory"]
    assert "was stopped" in said["forks-for-ever"]


@needs_bubblewrap
def test_who_forks_for_ever_is_told_so_even_where_its_time_is_over_before_the_watch_looks(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(limits._Sandboxed, "interval", 1000)
    monkeypatch.setattr(sandbox, "TIMEOUT", 3)
    # As many as it takes: what else runs on this machine should not hear of it.
    monkeypatch.setattr(limits, "TASKS", limits.PROCESSES + 32)
    monkeypatch.setitem(sandbox.MODULES, SAMPLES, ROOT / SAMPLES)
    monkeypatch.setattr("dtcourse.course.checking.outlines", lambda lesson=None: {"double": DOUBLE})
    # Where it is defined, not where it is called: here the judge's patience ends, there that of a launch.
    body = textwrap.indent(textwrap.dedent(ANSWERS["forks-for-ever"]), "    ")
    text = f"def bomb():{body}\n\ndef double(n, started=bomb()):\n    return 2 * n"
    nbfile.write(notebook(text), tmp_path / "ana-03.ipynb")
    result = CliRunner().invoke(app, ["grade", str(tmp_path)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    (feedback,) = (path.read_text() for path in (tmp_path / "graded" / "feedback").iterdir())
    assert "The answer tried to start more than 128 processes, and was stopped." in feedback


def test_processes_are_counted_while_the_measuring_of_their_memory_waits(monkeypatch):
    """The system tells what a process has for itself once that process is not forking, and these always are."""
    measuring, ended = threading.Event(), threading.Event()

    class Forking(limits._Sandboxed):
        def number(self):
            return 17 if not measuring.is_set() else limits.PROCESSES + 1

        def at_most(self):
            return 1 << 40

        def exact(self):
            measuring.set()
            assert ended.wait(60), "nobody has counted meanwhile"
            return 0

    monkeypatch.setattr(limits, "_Sandboxed", Forking)
    watch = limits.Watch(os.getpid(), True, 1 << 30, ended.set)
    watch.start()
    assert ended.wait(60)
    watch.stop()
    assert watch.took == ["start more than 128 processes"]


def test_the_server_of_this_test_would_notice_a_caller():
    server = Server()
    socket.create_connection(server.sockets[0].getsockname()).close()
    lane = socket.socket(socket.AF_UNIX)
    lane.connect("\0" + server.name)
    deadline = time.monotonic() + 10
    while server.callers < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert server.callers == 2
    server.close()
    lane.close()


@needs_bubblewrap
def test_all_of_it_ends_with_a_judge_that_is_killed(tmp_path):
    folder = tmp_path / "handed-in"
    body = "while True: pass"
    text = "def all_gather_both_ways(flat):\n    " + body
    folder.mkdir()
    nbfile.write(notebook(text), folder / "ana-03.ipynb")
    judge = subprocess.Popen(
        [sys.executable, "-m", "dtcourse.cli", "grade", str(folder)],
        cwd=PACKAGE.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 120
        while not (ranks := _ranks(judge.pid)):
            assert judge.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        everyone = psutil.Process(judge.pid).children(recursive=True)
    finally:
        os.kill(judge.pid, signal.SIGKILL)
        judge.wait()
    assert {process.pid for process in ranks} <= {process.pid for process in everyone}
    _, alive = psutil.wait_procs(everyone, timeout=20)
    assert not alive


def _ranks(pid: int) -> list[psutil.Process]:
    """Processes that were split off from a server of ranks, which was split off from an answer's process."""
    with contextlib.suppress(psutil.Error):
        tree = psutil.Process(pid).children(recursive=True)
        answers = {one.pid: one.ppid() for one in tree if _serves(one)}
        return [one for one in tree if answers.get(one.ppid()) in answers]
    return []


def _serves(process: psutil.Process) -> bool:
    return "bwrap" not in process.name() and "judging.serving" in " ".join(process.cmdline())
