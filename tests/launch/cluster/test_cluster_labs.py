"""docs/cluster-labs.md, word for word: its commands in their order, on a Slurm of two nodes, by an instructor and a
student, who are two users where the tests run as root."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import ExitStack
from itertools import groupby

import pytest

from dtcourse.launch.cluster import settings as clusters
from dtcourse.launch.cluster.throwaway import ThrowawaySlurm
from tests import optional_programs
from tests.launch.cluster.users import ANA, EVE, two_users

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.stands_on("docs/cluster-labs.md", "dtcourse/launch/", share=(1, 1)),
]

INSTRUCTOR, STUDENT = ANA, EVE
WHO = {"You": INSTRUCTOR, "A student": STUDENT}

# It takes minutes: the test's own environment takes its place, in the clone that was made, with the present files.
INSTALLATION = "make env PYTHON=/usr/bin/python3"
STAND_IN = """
cp -r {root}/dtcourse .
mkdir -p .venv/bin
printf '#!/bin/sh\\nexec "{python}" -m dtcourse.cli "$@"\\n' > .venv/bin/dtcourse
chmod 755 .venv/bin/dtcourse
echo 'export PATH="'"$PWD"'/.venv/bin:$PATH" PYTHONPATH="'"$PWD"'"' > .venv/bin/activate
"""


def blocks(root):
    """(who runs it, language, text) of the page's boxes; what is to be written into a file is the instructor's."""
    text = (root / "docs" / "cluster-labs.md").read_text()
    box = r"(?:(You|A student):\n\n)?^```(\w+)\n(.*?)^```$"
    found = re.findall(box, text, re.MULTILINE | re.DOTALL)
    assert all(who or language == "toml" for who, language, _ in found), "a box that nobody runs"
    return [(WHO.get(who, INSTRUCTOR), language, block) for who, language, block in found]


class Alone:
    """One user, who is the instructor and the student, with a home for each."""

    def __init__(self, folder):
        self.folder = folder
        for user in (INSTRUCTOR, STUDENT):
            self.home(user).mkdir()

    def home(self, user):
        return self.folder / user

    def write(self, user, code, name):
        (self.home(user) / name).write_text(code)

    def own(self, user, path):
        pass

    def run(self, user, *command, **environment):
        around = {**os.environ, "HOME": str(self.home(user)), "USER": user, **environment}
        options = {"capture_output": True, "text": True, "check": False, "timeout": 800}
        done = subprocess.run(command, cwd=self.home(user), env=around, **options)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def people(tmp_path):
    with ExitStack() as stack:
        if optional_programs.missing("users"):
            stack.enter_context(ThrowawaySlurm(nodes=2))
            yield Alone(tmp_path)
        else:
            yield stack.enter_context(two_users())


@pytest.mark.timeout(900)
@pytest.mark.needs("git", "clone")
def test_every_command_of_the_page_works_in_its_order(root, people):
    shared, course = people.folder / "shared", people.folder / "course.git"
    shared.mkdir()
    cloning = ["git", "clone", "--quiet", "--bare", "--depth", "1", f"file://{root}", course]
    subprocess.run(cloning, check=True)
    people.own(INSTRUCTOR, shared)
    people.own(INSTRUCTOR, course)
    people.write(STUDENT, "def step(lr):\n    return lr\n", "train.py")
    around = {"SHARED": str(shared), "COURSE": str(course)}
    kept = "from dtcourse.course.judging import bubblewrap; print(bubblewrap.why_not())"
    _, why_not = people.run(INSTRUCTOR, sys.executable, "-c", kept, PYTHONPATH=str(root))
    stand_in = STAND_IN.format(root=root, python=sys.executable).strip()
    said, start_up = "", []  # a student's start-up file has the page's two lines
    for user, group in groupby(blocks(root), key=lambda block: block[0]):
        script = ["set -euo pipefail", *(start_up if user == STUDENT else [])]
        for _, language, block in group:
            if language == "toml":
                people.write(user, block, "short.toml")
                script.append('cp "$HOME/short.toml" "$SHARED/cluster.toml"')
            elif language == "python":
                people.write(user, block, "cell.py")
                script.append(f'cd "$HOME" && "{sys.executable}" cell.py')
            else:
                start_up = start_up or (block.splitlines()[:2] if user == STUDENT else [])
                for line in block.splitlines():
                    if "dtcourse grade" in line and why_not.strip():
                        line += " --trust"
                    script += [f"echo '$ {line}'", stand_in if line == INSTALLATION else line]
        code, text = people.run(user, "bash", "-c", "\n".join(script), **around)
        said += text
        assert code == 0, said
    assert "Launches run on the cluster." in said
    assert "can run this Python and the course" in " ".join(said.split())
    assert "[4.0, 4.0, 4.0, 4.0]" in said
    assert "1 passed, 0 failed" in said, "the lesson on the cluster"
    assert "step(lr=0.1)" in said and "step(lr=0.3)" in said
    assert f"\n{STUDENT},{STUDENT}-06-" in said, "their line of points.csv"
    assert list((people.home(STUDENT) / "dtcourse-lab").glob("06-*"))
    if isinstance(people, Alone):
        return
    for secret in (
        f"cat {people.home(INSTRUCTOR)}/graded/points.csv",
        "ls $SHARED/hand-in",
        "ls $SHARED/dtcourse/solutions $SHARED/dtcourse/tests",
        "git -C $SHARED/dtcourse log",
        "touch $SHARED/dtcourse/dtcourse/__init__.py",
    ):
        code, text = people.run(STUDENT, "sh", "-c", secret, **around)
        assert (code != 0 and "denied" in text) or "not a git" in text, (secret, text)


def test_the_commands_that_open_the_folder_can_be_repeated(root, tmp_path):
    """After a `git pull`, say: nobody else can list what was handed in, everybody can hand in, secrets stay closed."""
    (commands,) = [block for _, _, block in blocks(root) if "chmod 1733" in block]
    shared = tmp_path / "shared"
    closed, opened = ("solutions", "tests", ".git"), ("dtcourse", "lessons/scripts")
    for name in (*closed, *opened):
        (shared / "dtcourse" / name).mkdir(parents=True)
    around = {**os.environ, "SHARED": str(shared)}
    modes = []
    for umask in (0o077, 0o022, 0o002):
        for path in ("cluster.toml", "dtcourse/lessons/new.ipynb", "dtcourse/solutions/new.ipynb"):
            (shared / path).touch()
            (shared / path).chmod(0o666 & ~umask)
        for name in closed:
            (shared / "dtcourse" / name).chmod(0o777 & ~umask)
        subprocess.run(["bash", "-euo", "pipefail", "-c", commands], env=around, check=True)
        (shared / "hand-in" / "a.ipynb").touch()
        (shared / "hand-in" / "a.ipynb").chmod(0o600)
        found = sorted(path for path in shared.rglob("*") if path.name != "a.ipynb")
        modes.append(
            {str(path.relative_to(shared)): path.stat().st_mode & 0o7777 for path in found}
        )
    assert modes[0] == modes[1] == modes[2]
    assert modes[0]["hand-in"] == 0o1733 and modes[0]["cluster.toml"] == 0o644
    assert not any(
        modes[0][f"dtcourse/{name}"] & 0o077 for name in (*closed, "solutions/new.ipynb")
    )
    assert modes[0]["dtcourse/lessons/new.ipynb"] == 0o644
    assert all(modes[0][f"dtcourse/{name}"] & 0o777 == 0o755 for name in opened)
    assert (shared / "hand-in" / "a.ipynb").stat().st_mode & 0o777 == 0o600, "as it was handed in"


def test_the_page_s_settings_are_read(root, tmp_path):
    (written,) = [block for _, language, block in blocks(root) if language == "toml"]
    (tmp_path / "cluster.toml").write_text(written)
    read = clusters.read(tmp_path / "cluster.toml")
    assert (read.minutes, read.wait_minutes, read.ranks_per_node) == (5, 10, 4)
    (tmp_path / "example.toml").write_text(clusters.EXAMPLE)
    assert clusters.read(tmp_path / "example.toml").minutes == 30


def test_the_sentences_of_the_page_are_said_by_the_code(root):
    """Those of its last table, by their fixed words."""
    code = "".join(path.read_text() for path in (root / "dtcourse/launch/cluster").glob("*.py"))
    code = re.sub(r'"\s*\n\s*f?"', "", code)
    for words in (
        "Slurm refused the job: ",
        "ended before it began, and its nodes have written nothing",
        ", the notebook has ",
        " minutes in the queue",
        " went silent; ",
        "was lost with its node, ",
        "can never start, and was cancelled: ",
        " is not safe: ",
        " cannot be written (",
    ):
        assert words in code, words
