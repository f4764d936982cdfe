"""containers/Containerfile, read line by line: no machine of ours has podman, docker or a registry."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FILE = ROOT / "containers" / "Containerfile"
KNOWN = {"FROM", "ARG", "ENV", "WORKDIR", "COPY", "RUN", "USER"}


def instructions(text: str) -> list[tuple[str, str]]:
    """[(instruction, the rest)]: without comments, lines that a backslash continues as one."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n", " ", lines)
    return [
        (word.upper(), rest.strip())
        for word, _, rest in (line.strip().partition(" ") for line in joined.splitlines())
        if word
    ]


def all_of(name: str) -> list[str]:
    return [rest for word, rest in instructions(FILE.read_text()) if word == name]


def copied() -> list[tuple[list[str], str]]:
    """[(sources, destination)]"""
    return [(words[:-1], words[-1]) for words in map(shlex.split, all_of("COPY"))]


def pip_lines() -> list[list[str]]:
    """Words of each pip install, without what only keeps the image small."""
    lines = [line for line in all_of("RUN") if "pip install" in line]
    return [[word for word in shlex.split(line) if word != "--no-cache-dir"] for line in lines]


def test_the_reader_reads():
    text = "# FROM nothing\nfrom a\nRUN b \\\n  c # d\n\nUSER 1\n"
    assert instructions(text) == [("FROM", "a"), ("RUN", "b    c # d"), ("USER", "1")]


def test_it_begins_with_a_supported_python_and_names_no_registry():
    words = [word for word, _ in instructions(FILE.read_text())]
    assert words[0] == "FROM" and words.count("FROM") == 1
    assert set(words) <= KNOWN, "instructions that nobody here has read the rules of"
    (image,) = all_of("FROM")
    name, version = re.fullmatch(r"([a-z]+):([0-9.]+)-slim", image).groups()
    assert name == "python", "no registry's host before it: podman and docker know where that is"
    supported = re.search(r"case \$1 in ([0-9. |]+)\)", (ROOT / "tools" / "setup").read_text())
    assert version in supported[1].split(" | ")


def test_what_it_copies_is_in_the_repository():
    for sources, _ in copied():
        for source in sources:
            assert (ROOT / source).exists(), source


@pytest.mark.needs("git", "clone")
def test_what_it_copies_is_tracked():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True).stdout
    for sources, _ in copied():
        for source in sources:
            assert re.search(rf"^{re.escape(source)}(/|$)", tracked, re.MULTILINE), source


def test_each_file_is_copied_before_it_is_used():
    seen: set[str] = set()
    for word, rest in instructions(FILE.read_text()):
        if word == "COPY":
            seen |= set(shlex.split(rest)[:-1])
        if word == "RUN" and "requirements.lock" in rest:
            assert "requirements.lock" in seen
        if word == "RUN" and rest.endswith("-e ."):
            assert {"pyproject.toml", "dtcourse"} <= seen


def installs_of_make_env(monkeypatch, tmp_path) -> list[list[str]]:
    """The pip installs that tools/environment.py runs, as somebody would type them in the repository."""
    spec = importlib.util.spec_from_file_location("environment", ROOT / "tools" / "environment.py")
    environment = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, environment)
    monkeypatch.syspath_prepend(ROOT / "tools")
    spec.loader.exec_module(environment)
    ran: list[list[str]] = []
    for name in ("VENV", "READY", "INSTALLING"):
        monkeypatch.setattr(environment, name, tmp_path / name)
    monkeypatch.setattr(environment, "make_venv", lambda: None)
    monkeypatch.setattr(environment, "run", lambda what, words, failure: ran.append(list(words)))
    environment.install("")
    short = {str(tmp_path / "VENV" / "bin" / "python"): "python", str(ROOT): ".",
             str(ROOT / "requirements.lock"): "requirements.lock"}  # fmt: skip
    chatter = {"--quiet", "--disable-pip-version-check"}
    return [[short.get(word, word) for word in words if word not in chatter] for words in ran]


def test_it_installs_as_make_env_does(monkeypatch, tmp_path):
    wanted = installs_of_make_env(monkeypatch, tmp_path)
    # The image's shell looks the lock's first line up, and PIP_ARGS concerns torch alone.
    torch = (ROOT / "requirements.lock").read_text().splitlines()
    (torch,) = [line for line in torch if line.startswith("torch==")]
    assert wanted[0][-1] == torch
    found = pip_lines()
    looked_up = ["$(grep '^torch==' requirements.lock)", "$PIP_ARGS"]
    assert found[0][-2:] == looked_up and "PIP_ARGS=" in all_of("ARG")[0]
    assert [[*found[0][:-2], torch], *found[1:]] == wanted


def test_grep_finds_torchs_line_and_no_other():
    words = pip_lines()[0][-2].removeprefix("$(").removesuffix(")")
    done = subprocess.run(words, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.fullmatch(r"torch==[0-9.]+\n", done.stdout)


def test_the_rest_of_the_repository_stays_out_of_the_build():
    """.dockerignore, as docker and podman read it: the last line that matches decides; * alone is everything here."""
    lines = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and line[0] != "#"
    ]
    assert lines[0] == "*"
    assert {line[1:] for line in lines if line[0] == "!"} == {
        source for sources, _ in copied() for source in sources
    }
    assert [line for line in lines[1:] if line[0] != "!"] == ["**/__pycache__"]


def test_the_folder_in_which_it_stands_belongs_to_its_user():
    words = instructions(FILE.read_text())
    (user,), folder = [rest for word, rest in words if word == "USER"], words[-1][1]
    made = next(
        i for i, (_, rest) in enumerate(words) if f"mkdir {folder} && chown {user} {folder}" in rest
    )
    assert made < words.index(("USER", user)), "only root may"


def test_ranks_are_not_root():
    words = instructions(FILE.read_text())
    users = [rest for word, rest in words if word == "USER"]
    assert users[-1].isdigit() and int(users[-1]) > 0, "a name would not show that it is not root"
    assert [word for word, _ in words][-2:] == ["USER", "WORKDIR"], "nothing after it runs as root"
    assert f"--uid {users[-1]} " in " ".join(all_of("RUN"))


@pytest.mark.slow
def test_what_it_copies_is_enough_to_install_the_course(tmp_path):
    place = tmp_path / "image"
    place.mkdir()
    for sources, destination in copied():
        for source in sources:
            if (ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(ROOT / source, place / destination, ignore=ignored)
            else:
                shutil.copy(ROOT / source, place / destination)
    words = [word for word in pip_lines()[-1] if word != "-e"]
    assert words[:4] == ["python", "-m", "pip", "install"] and words[-1] == "."
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, *words[1:-1], "--disable-pip-version-check", "--target", str(tmp_path / "installed"),
         "--report", str(report), "."],
        cwd=place, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (installed,) = json.loads(report.read_text())["install"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert installed["metadata"]["version"] == project["version"]
    for file in ("__main__.py", "cluster/kubernetes/manifests.py"):
        assert (tmp_path / "installed" / "dtcourse" / "launch" / file).is_file()
