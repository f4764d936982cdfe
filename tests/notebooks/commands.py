"""The commands that notebooks show their reader, and what the cells that print them need to have run."""

from __future__ import annotations

import ast
import builtins
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dtcourse.course import notebook as nbfile

_PROGRAMS = """torchrun python python3 mpirun mpiexec srun sbatch salloc dtcourse make pip conda jupyter git ssh
    nvidia-smi nsys kubectl docker"""
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Printed:
    """A command, and the notebook and cell that show it."""

    notebook: Path
    cell: str
    command: str


def is_command(text: str) -> bool:
    """Whether a text is a command that could be typed: a known program and something for it to do.

    `torchrun` alone, or `python -m torch.distributed.run`, is the name of a program.
    """
    if not any(
        name in text for name in _PROGRAMS.split()
    ):  # splitting is slow, and most texts are no commands
        return False
    try:
        words = shlex.split(text)
    except ValueError:
        return False
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if not words or Path(words[0]).name not in _PROGRAMS.split():
        return False
    named = 3 if words[1:2] == ["-m"] else 1
    return len(words) > named


def printed(path: Path) -> Iterator[Printed]:
    """All commands of a notebook: in code spans and blocks of its text, and in its outputs."""
    for cell in nbfile.read(path)["cells"]:
        texts = []
        if cell["cell_type"] == "markdown":
            texts = list(_of_markdown(cell["source"]))
        for output in cell.get("outputs", []):
            for kind, text in nbfile.output_text(output):
                if kind in ("stream", "text/plain"):
                    texts += text.splitlines()
                elif kind == "text/markdown":
                    texts += _of_markdown(text)
        for text in texts:
            if is_command(text.strip()):
                yield Printed(path, cell["id"], text.strip())


def _of_markdown(text: str) -> Iterator[str]:
    for language, block in _FENCE.findall(text):
        if language != "python":
            lines = block.replace("\\\n", " ").splitlines()
            yield from (line.lstrip("+-$ ") if language == "diff" else line for line in lines)
    yield from re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))


def defined(path: Path, names: tuple[str, ...]) -> str:
    """The functions of a notebook with these names, as they stand there: those that import what they use themselves."""
    found = {}
    for one in nbfile.code_cells(nbfile.read(path)):
        for statement in ast.parse(one["source"]).body:
            if isinstance(statement, ast.FunctionDef) and statement.name in names:
                found[statement.name] = ast.get_source_segment(one["source"], statement) or ""
    return "\n\n\n".join(found[name] for name in names) + "\n"


def needed(path: Path, cell: str) -> str:
    """The code of a notebook that a cell stands on: the statements before it that it needs, and it.

    A statement is needed if it binds a name that a needed one reads. What statements do to objects besides is not
    seen: good enough for definitions and parameters, which is what commands are made of.
    """
    statements: list[tuple[str, ast.stmt, str]] = []
    for one in nbfile.code_cells(nbfile.read(path)):
        source = one["source"]
        for statement in ast.parse(source).body:
            text = ast.get_source_segment(source, statement)
            statements.append((one["id"], statement, text or ""))
        if one["id"] == cell:
            break
    wanted: set[str] = set()
    taken: list[str] = []
    for where, statement, text in reversed(statements):
        if where == cell or _bound(statement) & wanted:
            wanted = (wanted - _bound(statement)) | _read(statement)
            taken.append(text)
    missing = wanted - set(dir(builtins))
    assert not missing, f"{path.name}: nothing defines {sorted(missing)}"
    return "\n\n".join(reversed(taken)) + "\n"


def _bound(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top level gives a value to."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    return {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _read(statement: ast.stmt) -> set[str]:
    """The names that a statement takes from outside: all that it reads, and does not bind in itself."""
    nodes = list(ast.walk(statement))
    inside = {node.arg for node in nodes if isinstance(node, ast.arg)}
    inside |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}  # fmt: skip
    inside |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    reads = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}  # fmt: skip
    return reads - inside
