"""Which lesson teaches what: the syllabus, and an index made from the notebooks' own metadata."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from dtcourse.course import places
from dtcourse.course.notebook import Notebook, NotebookError, code_cells, read, sections

# In the syllabus, and not taught yet. Who teaches one takes it out of here (shape.py looks).
LATER = frozenset(
    {
        "14b.fp8-training",
        "16.matrix-optimizers",
        "20.all-gather-context",
        "20.packed-documents",
        "21.fine-grained",
        "26.time-limits",
    }
)


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
        f"{places.number_of(lesson)}.{topic}": Entry(f"{places.number_of(lesson)}.{topic}", text)
        for lesson, topics in syllabus().items()
        for topic, text in topics.items()
    }
    folder = folder or places.home() / "lessons"
    for path in sorted(folder.glob(places.NUMBERED)):
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


# What every lesson stands on, whatever it teaches: where it runs, clocks, timelines, comparisons, models to try it on.
PLUMBING = (
    "dtcourse.collectives.traffic",
    "dtcourse.device",
    "dtcourse.emulation",
    "dtcourse.events",
    "dtcourse.models.ConvNet",
    "dtcourse.models.MLP",
    "dtcourse.models.PUBLISHED",
    "dtcourse.models.ResNet",
    "dtcourse.models.Transformer",
    "dtcourse.models.parameter_count",
    "dtcourse.models.transformer_parameters",
    "dtcourse.profiling.memory",
    "dtcourse.simulator.hardware",
    "dtcourse.verify",
)
# torch.distributed's, in every function that a rank runs.
_EVERYWHERE = ("get_rank", "get_world_size", "barrier", "ReduceOp", "init_process_group", "P2POp")


def _code_of_topics(notebook: Notebook) -> dict[str, list[str]]:
    """For each topic, the code that teaches it: of the cells that carry it, what they use or show of the course's
    techniques and of torch.distributed, and what they write by hand ("my_gate"). Where that is nothing, what the
    techniques' sections use; then any function of those cells; then what they stand on.
    """
    names = _imported(notebook)
    by_section: dict[str, list[str]] = {}
    cells_of: dict[str, list[tuple[str, str, list[str]]]] = {}
    for heading, cell in sections(notebook):
        if cell["cell_type"] == "code":
            uses = _used(cell["source"], names)
            by_section.setdefault(heading, []).extend(uses)
            for topic in cell["metadata"].get("topics", []):
                cells_of.setdefault(topic, []).append((heading, cell["source"], uses))
    found = {}
    for topic, cells in cells_of.items():
        used = [name for *_, uses in cells for name in uses]
        own = [name for _, source, _ in cells for name in _defined(source)]
        around = [name for heading, *_ in cells for name in by_section[heading]]
        taught = [name for name in own if name.startswith(("my_", "My"))]
        # A lesson on the emulated network teaches what is plumbing elsewhere.
        itself = topic.partition(".")[2].replace("-", "")
        taught += [name for name in used if _teaches(name) or itself in name.lower()]
        taught += [name for _, source, _ in cells for name in _of_torch(source)]
        code = taught or [*filter(_teaches, around)] or own
        code = code or [name for name in used if name != "dtcourse.device.current"]
        found[topic] = list(dict.fromkeys(code))
    return found


def _teaches(name: str) -> bool:
    """Whether a name is of a technique, not of what all of them stand on."""
    if name.endswith("__"):
        return False
    return not any(
        name == one or name.startswith((f"{one}.", f"{one}_", f"{one}Config")) for one in PLUMBING
    )


def _defined(source: str) -> list[str]:
    """The functions and classes that a cell writes."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node.name for node in _parse(source).body if isinstance(node, kinds)]


def _of_torch(source: str) -> list[str]:
    """What a cell takes of torch.distributed, which lessons call dist: torch.distributed.scatter."""
    return [
        f"torch.distributed.{node.attr}"
        for node in _nodes(source)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "dist"
        and node.attr not in _EVERYWHERE
    ]


@cache
def _parse(source: str) -> ast.Module:
    plain = re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)
    try:
        return ast.parse(plain)
    except SyntaxError:
        return ast.Module([], [])


@cache
def _nodes(source: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_parse(source)))


def _imported(notebook: Notebook) -> dict[str, str]:
    """The names that a notebook imports from dtcourse's techniques: ring -> dtcourse.collectives.ring."""
    names: dict[str, str] = {}
    for cell in code_cells(notebook):
        for node in _nodes(cell["source"]) if "dtcourse" in cell["source"] else ():
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
