"""docs/cluster-labs.md, word for word: its commands in their order, in one shell, on a Slurm of two nodes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from dtcourse.launch.cluster import settings as clusters
from dtcourse.launch.cluster.throwaway import ThrowawaySlurm

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.stands_on("docs/cluster-labs.md", "dtcourse/launch/", share=(1, 1)),
]

# An installation takes minutes: the test's own environment takes its place.
INSTALLS = {"git clone $COURSE dtcourse", "make env"}


def blocks(root):
    text = (root / "docs" / "cluster-labs.md").read_text()
    return re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def shared(root, tmp_path):
    """The shared folder, with the course in it as a clone would bring it, and what students handed in."""
    folder = tmp_path / "shared"
    course = folder / "dtcourse"
    course.mkdir(parents=True)
    for name in ("dtcourse", "lessons", "exercises", "solutions", "pyproject.toml"):
        (course / name).symlink_to(root / name)
    (course / ".venv" / "bin").mkdir(parents=True)
    (course / ".venv" / "bin" / "activate").write_text(
        f'export PATH="{tmp_path}/bin:$PATH" PYTHONPATH="{root}"\n'
    )
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "dtcourse"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dtcourse.cli "$@"\n')
    command.chmod(0o755)
    submissions = folder / "submissions"
    submissions.mkdir()
    shutil.copy(next((root / "exercises").glob("03-*.ipynb")), submissions / "ana-03.ipynb")
    home = tmp_path / "home"
    home.mkdir()
    (home / "train.py").write_text("def step(lr):\n    return lr\n")
    return folder


def test_every_command_of_the_page_works_in_its_order(root, shared, tmp_path):
    home = tmp_path / "home"
    script = ["set -euo pipefail"]
    for language, block in blocks(root):
        if language == "toml":
            (shared / "short.toml").write_text(block)
            script.append('cp "$SHARED/short.toml" "$SHARED/cluster.toml"')
        elif language == "python":
            (home / "cell.py").write_text(block)
            script.append(f'cd "$HOME" && "{sys.executable}" cell.py')
        else:
            for line in block.splitlines():
                if "dtcourse grade" in line and not shutil.which("bwrap"):
                    line += " --trust"
                # A grant to everybody follows the links of this test's own installation into the repository.
                line = line.replace("chmod -R", "chmod")
                if line not in INSTALLS:
                    script += [f"echo '$ {line}'", line]
    with ThrowawaySlurm(nodes=2):
        done = subprocess.run(
            ["bash", "-c", "\n".join(script)],
            env={**os.environ, "SHARED": str(shared), "HOME": str(home), "COURSE": str(root)},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "Launches run on the cluster." in said
    assert "[4.0, 4.0, 4.0, 4.0]" in said
    assert "1 passed, 0 failed" in said, "the lesson on the cluster"
    assert "step(lr=0.1)" in said and "step(lr=0.3)" in said
    assert "ana-03" in said, "its line of points.csv"
    assert list((home / "dtcourse-lab").glob("06-*"))
    assert not list(home.glob("*.toml"))


def test_the_page_s_settings_are_read(root, tmp_path):
    (written,) = [block for language, block in blocks(root) if language == "toml"]
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
        "was lost with its node, ",
    ):
        assert words in code, words
