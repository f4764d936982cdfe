"""What a test or a lesson is about, and what it uses besides: by what has changed of these CI chooses (rotation.py).

A test of `tests/sharding/` is about that folder and `dtcourse/sharding/`. It uses what its file imports, through
helpers in `tests/`, conftests and scripts too, what these packages and its own import in turn (one step), and the
notebooks, pages and data that strings in these files name. A lesson is about itself, its scripts, its checks, and the
data that it names. What nearly everything imports (EVERYONES) does not count as used: of so much a share shows as much.
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
    "parameters",
    "plots",
    "plural",
    "torch_private",
    "verify",
)
# About all files, or about all lessons, or all techniques.
OF_EVERYTHING = (
    "tests/repository/",
    "tests/notebooks/",
    "tests/course/test_outlines.py",
    "tests/pairs/test_table.py",
)
EVERYWHERE = ("requirements.lock", "pyproject.toml")
SCRIPTS = ("studies", "tools", "benchmarks")
# Where what is read by its name lies.
READ = (
    "lessons",
    "solutions",
    "exercises",
    "docs",
    "gallery",
    "frameworks",
    "containers",
    "studies",
    "benchmarks",
)
# What a folder of tests/ proves where that is no package of its own, but parts of several.
SPREAD = {
    "virtual": (
        "dtcourse/collectives/backend/virtual.py",
        "dtcourse/collectives/decisions.py",
        "dtcourse/simulator/virtual_cluster.py",
        "dtcourse/torch_private/shapes.py",
    )
}
# What a lesson shows through the library, whose functions have the folder's name.
SHOWN = {"24b": ("gallery/",), "29": ("frameworks/",)}


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
        own = [f"dtcourse/course/checks/lesson_{number}_", "tests/notebooks/sanitize.cfg"]
        own += [
            f"lessons/{folder}/{number}{mark}"
            for folder, mark in (("scripts", "_"), ("recorded", "-"))
        ]
        return (name, *own, *SHOWN.get(number, ()), *named(ast.parse(code_of(path))), *EVERYWHERE)
    first = topic(name)
    own = [name, *map(from_the_top, conftests(path)), *data(first)]
    own += [f"dtcourse/{first}/", f"dtcourse/{first}.py", f"{first}/", *SPREAD.get(first, ())]
    return (*own, *EVERYWHERE)


def topic(name: str) -> str:
    """What a test is about by its place: tests/sharding/... about sharding, tests/test_device.py about device."""
    top = name.split("/")[1]
    return top if name.count("/") > 1 else Path(top).stem.removeprefix("test_")


def from_the_top(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def conftests(path: Path) -> list[Path]:
    """Those of a test's own folders; the one of all tests is everyone's."""
    folders = path.relative_to(ROOT / "tests").parents[:-1]
    own = (ROOT / "tests" / folder / "conftest.py" for folder in folders)
    return [file for file in own if file.is_file()]


@cache
def data(folder: str) -> tuple[str, ...]:
    """What lies in a folder of tests/ and is no Python."""
    files = (ROOT / "tests" / folder).rglob("*.*")
    return tuple(from_the_top(file) for file in files if file.suffix not in (".py", ".pyc"))


@cache
def used(name: str) -> tuple[str, ...]:
    """What a test file or a lesson imports of the course and of tests/, and reads by its name; as `subjects`."""
    path = ROOT / name
    if path.suffix == ".ipynb":
        found = set(modules(code_of(path)))
    else:
        found = imported(path)
    # A package's own tests use what it imports, too.
    of_all = path.suffix == ".ipynb" or topic(name) in EVERYONES
    own = () if of_all else (file_or_folder(f"dtcourse/{topic(name)}"),)
    packages = [one for one in (*found, *own) if one.startswith("dtcourse/")]
    return tuple(found.union(*map(through, packages)))


@cache
def through(package: str) -> frozenset[str]:
    """What a package of the course, or a file of it, imports of the course and reads by its name."""
    path = ROOT / package
    files = [path] if path.is_file() else path.rglob("*.py")
    return frozenset().union(*map(modules_in, files))


def imported(path: Path) -> set[str]:
    """What a test's file imports of the course and reads by its name, itself or by what it imports in tests/, by its
    conftests and scripts. A study's test loads it by its name."""
    study = ROOT / "studies" / path.name.removeprefix("test_")
    found, files = set(), [path, *conftests(path)]
    files += [study] * (study.is_file() and topic(from_the_top(path)) == "studies")
    for file in files:  # which grows
        for module in modules_in(file) - found:
            found.add(module)
            helper = ROOT / module
            if (
                module.startswith(("tests/", *SCRIPTS))
                and helper.suffix == ".py"
                and helper.is_file()
            ):
                files.append(helper)
    return found


@cache  # a helper is many tests' own
def modules_in(file: Path) -> set[str]:
    """As `modules`, of a file."""
    return modules(file.read_text("utf-8"))


def modules(code: str) -> set[str]:
    """The course's own packages, and the files of tests/, that this code imports, and what it names, as paths."""
    tree = ast.parse(code)
    found = named(tree) if re.search(f"[\"'](?:{'|'.join(READ)})", code) else set()
    of_everyone = {("dtcourse", one) for one in EVERYONES}
    for name in imports(tree):
        top, *rest = name.split(".")
        if rest[:2] == ["course", "checks"]:
            # A check is its exercise's alone, unlike what else is everyone's in the course's own package.
            file = f"dtcourse/{'/'.join(rest[:4])}.py"
            found |= {file} if (ROOT / file).is_file() else set()
        elif top in ("dtcourse", *SCRIPTS) and rest and (top, rest[0]) not in of_everyone:
            found.add(file_or_folder(f"{top}/{rest[0]}"))
        elif top == "tests":
            found |= {f"tests/{'/'.join(rest[:depth])}.py" for depth in range(1, len(rest) + 1)}
    return found


def file_or_folder(module: str) -> str:
    """The path of a module, with / or .py at its end."""
    return f"{module}/" if (ROOT / module).is_dir() else f"{module}.py"


def named(tree: ast.AST) -> set[str]:
    """The files and folders of READ that strings name, as "docs/ray.md" and ROOT / "docs" / "ray.md" do; of one that
    ends in what only a run knows, the beginning."""
    found, within = set(), set()
    for node in ast.walk(tree):  # what is longer before its parts
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            within |= {id(node.left), id(node.right)}
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp) and id(node) not in within:
            path = written(node)
            top, _, rest = path.partition("/")
            if top in READ and " " not in path:
                found.add(path if rest else f"{top}/")
    return found


def written(node: ast.AST) -> str:
    """A path as far as strings tell it: from the first one that is known to the first that is not."""
    words: list[str] = []
    for part in strung(node):
        known = part.values[0] if isinstance(part, ast.JoinedStr) and part.values else part
        if isinstance(known, ast.Constant) and isinstance(known.value, str):
            words.append(known.value)
        elif words:
            words.append("")
        if words and not isinstance(part, ast.Constant):
            break
    return "/".join(words).partition("*")[0]


def strung(node: ast.AST) -> Iterator[ast.AST]:
    """The parts that `/` puts together."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        yield from strung(node.left)
        yield from strung(node.right)
    else:
        yield node


def imports(tree: ast.AST) -> Iterator[str]:
    """The names of all modules that it imports, and of all that may be modules, as `b` in `from a import b`."""
    nodes = [tree]
    # It grows; by statements alone, since expressions import nothing and are most of it.
    for node in nodes:
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            nodes += getattr(node, block, ())
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def code_of(notebook: Path) -> str:
    """A notebook's code, without the lines that are IPython's own."""
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return re.sub(r"^(\s*)[%!].*$", r"\1pass", code, flags=re.MULTILINE)
