"""Which answers are tried in this run of the suite: all that the change is about, and of the others some, in turn.

Trying every answer to every exercise is the longest part of tests/course, and grows with each lesson. What an
exercise's verdicts come from is known. Where its lesson's own files have changed lately (checks, solution, answers),
all of its answers are tried. Where something has changed that these stand on (the judge, launch, whatever the checks
import), a third of them is: such a change has tests of its own, and what it breaks is seldom one answer alone. Where
nothing has, a ninth. Which ones goes by the commit. `make test-all` (DTCOURSE_MUTANTS=all) tries all.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Commits, and hours: the longer of the two is more than what is pushed at once.
LATELY, HOURS = 10, 3
# One answer of so many, where what it stands on has changed, and where nothing has.
TURNS, SELDOM = 3, 9
# What every verdict may come from, besides what the checks import.
EVERYWHERE = ("dtcourse/course/", "tests/course/", "tests/conftest.py", "pyproject.toml",
              "requirements.lock")  # fmt: skip
OWN = ("dtcourse/course/checks/lesson_{}", "tests/course/mutants/lesson_{}", "solutions/{}-")


def left_out(lesson: str, number: int) -> str:
    """Why an answer to a lesson's exercise is not tried in this run; empty where it is.

    number: its place among all answers
    """
    commit, paths = _git("rev-parse", "HEAD"), changed()
    if os.environ.get("DTCOURSE_MUTANTS") == "all" or not commit or paths is None:
        return ""
    return reason(lesson, number, paths, commit)


def reason(lesson: str, number: int, paths: Iterable[str], commit: str) -> str:
    """The same for given changes."""
    paths = list(paths)
    if any(path.startswith(_own(lesson)) for path in paths):
        return ""
    turns = TURNS if any(touches(path, lesson) for path in paths) else SELDOM
    if is_turn(number, turns, commit):
        return ""
    return (
        f"an answer to lesson {lesson}: not its turn (one of {turns}), and neither the lesson's checks nor its "
        "solution or answers have changed lately (DTCOURSE_MUTANTS=all tries all)"
    )


def waits(number: int, own: tuple[str, ...]) -> bool:
    """Whether something of which there are many, and which stands on these files first of all,
    is not tried in this run."""
    commit, paths = _git("rev-parse", "HEAD"), changed()
    if os.environ.get("DTCOURSE_MUTANTS") == "all" or not commit or paths is None:
        return False
    return not any(path.startswith(own) for path in paths) and not is_turn(number, TURNS, commit)


def is_turn(number: int, turns: int, commit: str) -> bool:
    """Whether a commit tries this one: one of so many in a row."""
    return (number + int(commit[:8], 16)) % turns == 0


def _own(lesson: str) -> tuple[str, ...]:
    return tuple(one.format(lesson) for one in OWN)


def touches(path: str, lesson: str) -> bool:
    """Whether a changed file can change a verdict on an answer to a lesson's exercise."""
    if path.startswith(_own(lesson)):
        return True
    others = _own("")[:2]
    everywhere = path.startswith(EVERYWHERE) and not path.startswith(others)
    return everywhere or path.startswith(tuple(stands_on(lesson)))


@cache
def changed() -> list[str] | None:
    """The files that are not as they were LATELY commits and HOURS hours before the last commit; None where that
    cannot be told (no git, a shallow clone, so young a repository)."""
    by_number = _git("rev-parse", "--verify", "-q", f"HEAD~{LATELY}")
    now = int(_git("log", "-1", "--format=%ct") or 0)
    by_time = _git("rev-list", "-1", f"--before={now - HOURS * 3600}", "HEAD")
    base = _git("merge-base", by_number, by_time) if by_number and by_time else ""
    if not base:
        return None
    return (
        _git("diff", "--name-only", base).split()
        + _git("ls-files", "-o", "--exclude-standard").split()
    )


@cache
def stands_on(lesson: str) -> frozenset[str]:
    """The course's modules and packages that the judge and a lesson's checks import, at whatever depth.

    A package counts as a whole: a backend is loaded by its name.
    """
    todo = [*ROOT.glob(f"dtcourse/course/checks/lesson_{lesson}_*/*.py")]
    todo += ROOT.glob("dtcourse/course/judging/*.py")
    found: set[Path] = set()
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += _imported(path)
    inside = (path.relative_to(ROOT).parts for path in found)
    return frozenset(
        "/".join(parts[:2]) + "/" * (len(parts) > 2) for parts in inside if parts[1] != "course"
    )


@cache
def _imported(path: Path) -> list[Path]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and str(node.value).startswith("dtcourse."):
            names.add(str(node.value))  # a module that is imported by its name
    files = []
    for name in names:
        parts = name.split(".")
        if parts[0] == "dtcourse":
            for end in range(1, len(parts) + 1):
                base = ROOT.joinpath(*parts[:end])
                files += [
                    one for one in (base.with_suffix(".py"), base / "__init__.py") if one.is_file()
                ]
    return files


@cache
def _git(*arguments: str) -> str:
    """What git prints; empty where it fails."""
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else ""
