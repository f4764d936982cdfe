"""What a test or a lesson is about, and what it uses besides: by what has changed of these CI chooses (rotation.py).

A test of `tests/sharding/` is about that folder and `dtcourse/sharding/`. It uses what its file imports, through
helpers in `tests/` too (not what that imports in turn). A lesson is about itself, its scripts and its checks. What
nearly everything imports (EVERYONES) does not count as used: of so much a share shows as much.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EVERYONES = (
    "collectives",
    "course",
    "data",
    "device",
    "emulation",
    "launch",
    "models",
    "plots",
    "verify",
)
# About all files, or about all lessons.
OF_EVERYTHING = ("tests/repository/", "tests/notebooks/", "tests/course/test_outlines.py")
EVERYWHERE = ("requirements.lock", "pyproject.toml")


@cache
def subjects(name: str) -> tuple[str, ...]:
    """The files that a test file or a lesson is about, and folders with a slash at their end.

    name: from the repository's top
    """
    if name.startswith(OF_EVERYTHING):
        return ("",)  # each path begins so
    path = ROOT / name
    if path.suffix == ".ipynb":
        number = path.name.partition("-")[0]
        own = [name, f"lessons/scripts/{number}_", f"dtcourse/course/checks/lesson_{number}_"]
        return (*own, *EVERYWHERE)
    folder = path.parent.name if path.parent != ROOT / "tests" else path.stem.removeprefix("test_")
    first = name.split("/")[1] if name.count("/") > 1 else folder
    own = [
        name,
        f"tests/{first}/conftest.py",
        f"dtcourse/{first}/",
        f"dtcourse/{first}.py",
        f"{first}/",
    ]
    return (*own, *EVERYWHERE)


@cache
def used(name: str) -> tuple[str, ...]:
    """What a test file or a lesson imports of the course, and of helpers in tests/; as `subjects`."""
    path = ROOT / name
    return tuple(modules(code_of(path)) if path.suffix == ".ipynb" else imported(path))


def imported(path: Path) -> set[str]:
    """What a test's file imports of the course, itself or by the helpers in tests/ that it imports."""
    found, files = set(), [path]
    for file in files:  # which grows
        for module in modules_in(file):
            if not module.startswith("tests/"):
                found.add(module)
            elif module not in found and (ROOT / module).is_file():
                found.add(module)
                files.append(ROOT / module)
    return found


@cache  # a helper is many tests' own
def modules_in(file: Path) -> set[str]:
    """As `modules`, of a file."""
    return modules(file.read_text("utf-8"))


def modules(code: str) -> set[str]:
    """The course's own packages, and the files of tests/, that this code imports, as paths."""
    found = set()
    for name in imports(ast.parse(code)):
        top, *rest = name.split(".")
        if top == "dtcourse" and rest and rest[0] not in EVERYONES:
            package = f"dtcourse/{rest[0]}"
            found.add(f"{package}/" if (ROOT / package).is_dir() else f"{package}.py")
        elif top in ("studies", "tools", "benchmarks") and rest:
            found.add(f"{top}/{rest[0]}")
        elif top == "tests":
            found |= {f"tests/{'/'.join(rest[:depth])}.py" for depth in range(1, len(rest) + 1)}
    return found


def imports(tree: ast.AST) -> Iterator[str]:
    """The names of all modules that it imports, and of all that may be modules, as `b` in `from a import b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def code_of(notebook: Path) -> str:
    """A notebook's code, without the lines that are IPython's own."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return re.sub(r"^(\s*)[%!].*$", r"\1pass", code, flags=re.MULTILINE)
