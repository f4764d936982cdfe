"""Which lesson teaches what: the syllabus, and an index made from the notebooks' own metadata."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from dtcourse.course import places
from dtcourse.course.notebook import Notebook, NotebookError, code_cells, read, sections


@cache
def syllabus() -> dict[str, dict[str, str]]:
    """Every lesson of the course ("04-all-reduce-algorithms") with its topics ("ring": description)."""
    import yaml

    parts = yaml.load(
        places.SYLLABUS.read_text(encoding="utf-8"),
        Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader),
    )
    return {lesson: dict(topics) for part in parts.values() for lesson, topics in part.items()}


def of_lesson(number: str) -> dict[str, str]:
    """The topics of one lesson by their full ids: "04.ring": description."""
    for lesson, topics in syllabus().items():
        if lesson.startswith(f"{number}-"):
            return {f"{number}.{topic}": text for topic, text in topics.items()}
    raise ValueError(f"the syllabus has no lesson {number}")


@dataclass
class Entry:
    """Where a topic is taught, and with which code."""

    topic: str
    description: str
    sections: list[tuple[str, str]] = field(default_factory=list)
    code: list[str] = field(default_factory=list)

    @property
    def taught(self) -> bool:
        """Whether some lesson's code cell carries the topic."""
        return bool(self.sections)


def index(folder: Path | None = None) -> dict[str, Entry]:
    """Every topic of the syllabus, with the (lesson, section) of each code cell that carries it."""
    entries = {
        f"{lesson[:2]}.{topic}": Entry(f"{lesson[:2]}.{topic}", text)
        for lesson, topics in syllabus().items()
        for topic, text in topics.items()
    }
    folder = folder or places.home() / "lessons"
    for path in sorted(folder.glob("[0-9][0-9]-*.ipynb")):
        try:
            notebook = read(path)
        except NotebookError:
            continue
        shown = _code_of_topics(notebook)
        for heading, cell in sections(notebook):
            if cell["cell_type"] != "code":
                continue
            for topic in cell["metadata"].get("topics", []):
                entry = entries.setdefault(topic, Entry(topic, ""))
                if (path.stem, heading) not in entry.sections:
                    entry.sections.append((path.stem, heading))
                entry.code += [name for name in shown.get(topic, []) if name not in entry.code]
    return entries


def _code_of_topics(notebook: Notebook) -> dict[str, list[str]]:
    """For each topic, the dtcourse objects used or shown in the sections whose cells carry it."""
    names = _imported(notebook)
    by_section: dict[str, list[str]] = {}
    topics_of: dict[str, list[str]] = {}
    for heading, cell in sections(notebook):
        if cell["cell_type"] == "code":
            topics_of.setdefault(heading, []).extend(cell["metadata"].get("topics", []))
            by_section.setdefault(heading, []).extend(_used(cell["source"], names))
    found: dict[str, list[str]] = {}
    for heading, topics in topics_of.items():
        for topic in topics:
            found.setdefault(topic, []).extend(by_section[heading])
    return {topic: list(dict.fromkeys(used)) for topic, used in found.items()}


def _parse(source: str) -> ast.Module:
    plain = re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)
    try:
        return ast.parse(plain)
    except SyntaxError:
        return ast.Module([], [])


def _imported(notebook: Notebook) -> dict[str, str]:
    """The names that a notebook imports from dtcourse's techniques: ring -> dtcourse.collectives.ring."""
    names: dict[str, str] = {}
    for cell in code_cells(notebook):
        for node in ast.walk(_parse(cell["source"])):
            if (
                isinstance(node, ast.ImportFrom)
                and (node.module or "").partition(".")[0] == "dtcourse"
            ):
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    ours = ("dtcourse.course", "dtcourse.plots", "dtcourse.launch", "dtcourse.data")
    return {name: full for name, full in names.items() if not full.startswith(ours)}


def _used(source: str, names: dict[str, str]) -> list[str]:
    found: list[str] = []

    def full(node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.Attribute):
            base = full(node.value)
            return f"{base}.{node.attr}" if base else None
        return None

    class Visitor(ast.NodeVisitor):
        def visit_Attribute(self, node: ast.Attribute) -> None:
            name = full(node)
            if name:
                found.append(name)
            else:
                self.generic_visit(node)

        def visit_Name(self, node: ast.Name) -> None:
            if node.id in names:
                found.append(names[node.id])

    Visitor().visit(_parse(source))
    return list(dict.fromkeys(found))
