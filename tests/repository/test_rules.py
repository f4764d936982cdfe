"""Rules that hold for every file, and that no reviewer should have to look for."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import optional_programs

ROOT = Path(__file__).resolve().parent.parent.parent

# In pieces, so that this file does not contain what it looks for.
HOSTS = [
    "pypi" + ".org",
    "pytorch" + ".org/whl",
    "pythonhosted" + ".org",
    "anaconda" + ".org",
    "npmjs" + ".org",
    "deb.debian" + ".org",
    "proxy.golang" + ".org",
]
FOLDERS = ["work", "root", "home", "Users", "opt/wheels", "opt/pypi"]
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:" + "|".join(FOLDERS) + r")/[\w.]")


# Invented paths: the tests of what takes such paths out of notebooks.
INVENTED = ["/" + "home/ana/"]


def tracked() -> list[str]:
    optional_programs.require("git")
    optional_programs.require("clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def trouble_in(text: str) -> list[str]:
    for path in INVENTED:
        text = text.replace(path, "")
    found = [host for host in HOSTS if host in text]
    return found + [match.group() for match in MACHINE_PATH.finditer(text)]


def test_no_file_names_a_package_index_or_a_folder_of_somebodys_machine():
    bad = {}
    for name in tracked():
        content = (ROOT / name).read_bytes()
        if b"\0" not in content and (found := trouble_in(content.decode(errors="replace"))):
            bad[name] = sorted(set(found))
    assert not bad


@pytest.mark.parametrize(
    "text",
    [
        "pip install --index-url https://" + HOSTS[0] + "/simple",
        "cd /" + "work/main",
        'File "/' + 'root/x.py"',
        "(/" + "Users/ada/course)",
    ],
)
def test_the_rule_notices(text):
    assert trouble_in(text)


@pytest.mark.parametrize(
    "text",
    ["https://pytorch.org/get-started/locally/", "$TMP/" + "work/a", "homework/x", "a/home/b"],
)
def test_the_rule_lets_pass_what_is_fine(text):
    assert not trouble_in(text)


def test_nothing_that_git_ignores_is_tracked():
    tracked()
    listed = subprocess.run(
        ["git", "ls-files", "-ci", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout == ""


@pytest.mark.needs("git", "clone")
@pytest.mark.parametrize("path", ["my/02.ipynb", ".venv/x", "build/executed/a.ipynb", ".cache/x"])
def test_git_ignores_what_people_and_tools_make(path):
    done = subprocess.run(["git", "check-ignore", "-q", path], cwd=ROOT, check=False)
    assert done.returncode == 0


# Where the word is a value that the user passes or torch wants to hear, not a call to the GPU.
MAY_NAME_CUDA = {
    "dtcourse/launch/options.py",  # checks launch(device="cuda") before any rank has loaded torch
    "dtcourse/launch/cluster/remote.py",  # the same, for the nodes of a cluster
    "dtcourse/launch/__main__.py",  # --device
    "dtcourse/collectives/backend/register.py",  # tells torch which devices a backend serves
    "dtcourse/torch_private/groups.py",  # the same, in torch's non-public names
}


def cuda_in(source: str, words: bool = True) -> list[int]:
    """Lines of code, not of docstrings or comments, that use CUDA or (words) name it."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    lines = []
    for node in ast.walk(tree):
        used = isinstance(node, ast.Attribute) and node.attr == "cuda"
        named = (
            words
            and isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and re.fullmatch(r"cuda(:\d*)?", node.value)
        )
        if used or named:
            lines.append(node.lineno)
    return lines


def test_only_device_py_says_cuda():
    bad = {}
    for path in sorted((ROOT / "dtcourse").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        found = cuda_in(path.read_text(), words=name not in MAY_NAME_CUDA)
        if found and name != "dtcourse/device.py":
            bad[name] = found
    assert not bad, "ask dtcourse.device instead"


def test_the_search_for_cuda_finds_it():
    source = "x = y.cuda()\nz = torch.device('cuda:0')\n'cuda'\n"
    assert cuda_in(source) == [1, 2]
    assert cuda_in(source, words=False) == [1]
    assert cuda_in((ROOT / "dtcourse" / "device.py").read_text(), words=False)


def test_ruff_is_content():
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "."], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
