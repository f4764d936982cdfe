"""What an answer sees of the machine, as root's and as an ordinary user's."""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from dtcourse.course.judging import attempts, bubblewrap
from dtcourse.course.places import PACKAGE

# Turns root into an ordinary user who sees the same files.
_ORDINARY = ["bwrap", "--unshare-user", "--uid", "1000", "--gid", "1000", "--cap-drop", "ALL"]
_SAME_FILES = ["--bind", "/", "/", "--dev-bind", "/dev", "/dev"]
USERS = {"as we are": [], "an ordinary user": [*_ORDINARY, *_SAME_FILES]}
needs_bubblewrap = pytest.mark.needs("bubblewrap")

LOOK = """
import json, os, shutil, socket, subprocess, sys
def says(what, *arguments):
    try: return what(*arguments)
    except OSError as error: return type(error).__name__ + ' ' + os.strerror(error.errno)
def write(path):
    open(path, 'w').close()
found = {
    'uid': os.getuid(),
    'folders': {path: says(os.listdir, path) for path in sys.argv[1:]},
    'writes': {path: says(write, path) for path in
               ('/x', '/usr/x', '/etc/x', '/course/x', '/dev/x', '/tmp/x', '/dev/shm/x', '/dev/null')},
    'kernel': says(lambda: os.close(os.open('/proc/sys/kernel/core_pattern', os.O_WRONLY))),
    'processes': len([name for name in os.listdir('/proc') if name.isdigit()]),
    'networks': [name for _, name in socket.if_nameindex()],
    'loopback': says(lambda: socket.create_server(('127.0.0.1', 0)).close()),
    'outside': says(lambda: socket.create_connection(('192.0.2.1', 80), 2)),
    'room': [os.statvfs(path).f_blocks * os.statvfs(path).f_frsize for path in ('/tmp', '/dev/shm')],
    'capabilities': [line.split()[1] for line in open('/proc/self/status') if line.startswith(('CapEff', 'CapPrm'))],
    'home': os.getcwd(),
    'namespaces': shutil.which('unshare') and subprocess.call(['unshare', '--user', 'true'], stderr=subprocess.DEVNULL),
}
print(json.dumps(found))
"""


def inside(*arguments, user="as we are", python=sys.executable, private=(), modules=None):
    """What LOOK finds in a sandbox that this user's Python starts."""
    if USERS[user] and os.geteuid() != 0:
        pytest.skip("we are an ordinary user already")
    code = (
        "import json, subprocess, sys; from pathlib import Path; from dtcourse.course.judging import bubblewrap\n"
        "modules, private, look, *arguments = map(json.loads, sys.argv[1:])\n"
        "front = bubblewrap.command({k: Path(v) for k, v in modules.items()}, map(Path, private))\n"
        "sys.exit(subprocess.call([*front, sys.executable, '-I', '-S', '-c', look, *arguments]))"
    )
    words = [
        {name: str(path) for name, path in (modules or {"dtcourse": PACKAGE}).items()},
        [str(path) for path in private],
        LOOK,
        *map(str, arguments),
    ]
    done = subprocess.run(
        [*USERS[user], str(python), "-c", code, *map(json.dumps, words)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["", str(PACKAGE.parent), *_packages()])},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _packages():
    return [path for path in sys.path if path.endswith("site-packages")]


@needs_bubblewrap
@pytest.mark.parametrize("user", USERS)
def test_what_an_answer_may_do(user, tmp_path):
    checkout = [PACKAGE.parent / name for name in ("solutions", "tests", ".git", "exercises")]
    found = inside(*checkout, tmp_path, "/course", user=user)
    assert found["folders"].pop("/course") == ["dtcourse"]
    assert set(found["folders"].values()) == {"FileNotFoundError No such file or directory"}
    writes = found["writes"]
    assert [path for path, said in writes.items() if said is None] == [
        "/tmp/x",
        "/dev/shm/x",
        "/dev/null",
    ]
    assert all("Error" in said for said in writes.values() if said)
    assert found["processes"] <= 3
    assert found["networks"] == ["lo"] and found["loopback"] is None
    assert found["outside"] == "OSError Network is unreachable"
    assert found["room"] == [bubblewrap.SCRATCH] * 2
    assert set(found["capabilities"]) == {"0" * 16}
    assert found["home"] == "/tmp"
    # our ordinary user is root in disguise, to whom the kernel's files belong
    if user == "as we are":
        assert found["kernel"] == "PermissionError Permission denied"
    if user == "an ordinary user" and found["namespaces"] is not None:
        assert found["namespaces"] != 0  # in one of its own it could mount what it likes
    assert found["uid"] != 0


@needs_bubblewrap
def test_an_environment_in_the_instructors_home_is_seen_and_the_home_is_not(tmp_path):
    """With an environment that is reached through a link, too."""
    course = tmp_path / "home" / "dtcourse"
    (course / "solutions").mkdir(parents=True)
    (tmp_path / "home" / ".ssh").mkdir()
    venv.create(tmp_path / "disk" / "env", symlinks=True)
    (course / ".venv").symlink_to(tmp_path / "disk" / "env")
    home = tmp_path / "home"
    found = inside(home, course, course / ".venv", python=course / ".venv" / "bin" / "python")
    folders = {
        Path(path).relative_to(home).as_posix(): names for path, names in found["folders"].items()
    }
    assert folders["."] == ["dtcourse"] and folders["dtcourse"] == [".venv"]
    assert "bin" in folders["dtcourse/.venv"]


@needs_bubblewrap
def test_what_is_private_is_not_seen_in_a_folder_that_is(tmp_path, monkeypatch):
    """A course inside an environment, an environment inside that course."""
    shown = tmp_path / "env" / "site-packages"
    private = shown / "course"
    again = private / "lib" / "site-packages"
    again.mkdir(parents=True)
    for folder in (shown, private, again):
        (folder / "file").touch()
    sees = {"site-packages": ["course", "file"], "course": ["lib"]}
    packages = [path for path in sys.path if path.endswith("site-packages")]
    monkeypatch.setattr(
        "tests.course.test_bubblewrap._packages", lambda: [*packages, str(shown), str(again)]
    )
    folders = inside(shown, private, again, private=[private])["folders"]
    assert sorted(folders[str(shown)]) == sees["site-packages"]
    assert folders[str(private)] == sees["course"] and folders[str(again)] == ["file"]


@needs_bubblewrap
def test_a_library_path_shows_libraries_and_no_home(tmp_path, monkeypatch):
    home, libraries = tmp_path / "home", tmp_path / "libraries"
    for folder in (home, libraries):
        folder.mkdir()
        (folder / "file").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/:{home}::{libraries}")
    folders = inside(home, libraries, private=[home])["folders"]
    assert folders[str(libraries)] == ["file"]
    assert folders[str(home)] == "FileNotFoundError No such file or directory"


def test_why_there_is_no_sandbox(monkeypatch, tmp_path):
    def says():
        bubblewrap.why_not.cache_clear()
        return bubblewrap.why_not()

    try:
        monkeypatch.setenv("PATH", str(tmp_path))
        if sys.platform == "linux":
            assert "not installed (apt install bubblewrap)" in says()
            fake = tmp_path / "bwrap"
            fake.write_text(
                "#!/bin/sh\necho 'bwrap: No permissions to create a namespace' >&2\nexit 1\n"
            )
            fake.chmod(0o755)
            assert "does not work here (bwrap: No permissions to create a namespace)" in says()
        monkeypatch.setattr(sys, "platform", "darwin")
        assert "needs Linux" in says()
    finally:
        monkeypatch.undo()
        bubblewrap.why_not.cache_clear()


@needs_bubblewrap
def test_where_the_system_lets_nobody_make_one_grade_says_so(tmp_path):
    """As in a container that was started without leave to make namespaces."""
    shutil.copy(next((PACKAGE.parent / "exercises").glob("03*.ipynb")), tmp_path / "ana-03.ipynb")
    here = [*_ORDINARY, "--disable-userns", *_SAME_FILES]
    done = subprocess.run(
        [*here, sys.executable, "-m", "dtcourse.cli", "grade", str(tmp_path)],
        cwd=PACKAGE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    said = " ".join(done.stderr.split())
    assert done.returncode == 2 and not (tmp_path / "graded").exists()
    assert "bubblewrap does not work here (bwrap: Creating new namespace failed" in said
    assert "--trust runs it all the same, as you" in said


POLICY = attempts.Policy(
    own=["/tmp"], private=["/houses/ada", "/tmp/handed-in"], shown=["/houses/ada/.venv", "/course"]
)


@pytest.mark.parametrize(
    ("event", "arguments", "words"),
    [
        ("open", ("/etc/passwd", "w", os.O_WRONLY | os.O_CREAT), "write to /etc/passwd"),
        ("open", (b"/etc/../etc/passwd", None, os.O_RDWR), "write to /etc/passwd"),
        ("open", ("/etc/passwd", "r", os.O_RDONLY), ""),
        ("open", ("/tmp/x", "w", os.O_WRONLY), ""),
        ("open", ("/dev/null", "w", os.O_WRONLY), ""),
        ("open", ("/tmp/handed-in/graded/points.csv", "a", os.O_APPEND), "write to /tmp/handed-in/graded/points.csv"),
        ("open", (3, "w", os.O_WRONLY), ""),
        ("open", ("/houses/ada/.ssh/id", "r", os.O_RDONLY), "read /houses/ada/.ssh/id"),
        ("open", ("/houses/ada/.venv/lib/x.py", "r", os.O_RDONLY), ""),
        ("open", ("/houses/ada/.venv/lib/__pycache__/x.pyc", "wb", os.O_WRONLY), ""),
        ("open", ("/proc/self/comm", "w", os.O_WRONLY), ""),
        ("open", ("/proc/sys/kernel/core_pattern", "w", os.O_WRONLY), "write to /proc/sys/kernel/core_pattern"),
        ("os.listdir", ("/houses/ada",), "list /houses/ada"),
        ("os.listdir", (None,), ""),
        ("os.remove", ("/course/x", -1), "delete /course/x"),
        ("os.rename", ("/tmp/x", "/course/x", -1, -1), "rename /course/x"),
        ("os.symlink", ("/houses/ada", "/tmp/x", -1), ""),
        ("socket.connect", (None, ("10.0.0.1", 22)), "connect to 10.0.0.1:22"),
        ("socket.connect", (None, ("127.0.0.1", 22)), ""),
        ("socket.connect", (None, "\0lane"), ""),
        ("socket.connect", (None, "/run/docker.sock"), "connect to /run/docker.sock"),
        ("socket.getaddrinfo", ("example.com", 80, 0, 0, 0), "look up example.com"),
        ("socket.getaddrinfo", ("10.0.0.1", 80, 0, 0, 0), ""),
        ("socket.getaddrinfo", (None, 80, 0, 0, 0), ""),
        ("import", ("os", None, None, None, None), ""),
    ],
)  # fmt: skip
def test_what_is_an_attempt(event, arguments, words):
    assert attempts.describe(event, arguments, POLICY) == words


def test_what_every_import_looks_through_is_no_attempt(monkeypatch):
    assert (
        attempts.describe("os.listdir", ("/houses/ada/course",), POLICY)
        == "list /houses/ada/course"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, "/houses/ada/course"])
    assert attempts.describe("os.listdir", ("/houses/ada/course",), POLICY) == ""


def test_where_most_of_the_machine_is_not_there_each_of_its_files_is_an_attempt(tmp_path):
    policy = attempts.Policy(
        **{**vars(POLICY), "seen": ["/usr", "/etc/localtime", "/course", "/proc"]}
    )
    for path, words in {
        "/etc/passwd": "read /etc/passwd",
        "/opt/other/solutions/03.ipynb": "read /opt/other/solutions/03.ipynb",
        "/usr/lib/x.so": "",
        "/etc/localtime": "",
        "/proc/self/maps": "",
        str(tmp_path): "",  # its own, and there
        str(tmp_path / "not"): f"read {tmp_path / 'not'}",  # perhaps this machine's
        "/houses/ada/.ssh/id": "read /houses/ada/.ssh/id",
    }.items():
        assert attempts.describe("open", (path, "r", os.O_RDONLY), policy) == words
    for path, words in {"/": "", "/etc": "", "/opt": "list /opt", "/usr/lib": ""}.items():
        assert attempts.describe("os.listdir", (path,), policy) == words


def test_what_no_machine_has_was_not_refused(tmp_path):
    (tmp_path / "there").touch()
    words = [f"read {tmp_path}/there", f"read {tmp_path}/not", f"list {tmp_path}", "write to /not"]
    words += ["read /houses/ada/not", "look up example.com"]
    assert attempts.refused(words, ["/houses/ada"]) == [one for one in words if one != words[1]]
