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
        "21.fine-grained",
        "26.time-limits",
        "30.virtual-cluster",
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
        own = [name for _, source, _ in cells for name in _said(source).defined]
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


@dataclass(frozen=True)
class _Said:
    """What the source of a cell says: names with what is taken of them ("naive.broadcast_steps"), as they come; what it
    imports from the course (ring: dtcourse.collectives.ring); the functions and classes that it writes.
    """

    names: tuple[str, ...] = ()
    imported: dict[str, str] = field(default_factory=dict)
    defined: tuple[str, ...] = ()


@cache
def _said(source: str) -> _Said:
    """One walk over a cell's syntax, for all that is asked of it: `dtcourse topics` reads a thousand cells."""
    plain = re.sub(r"^(\s*)[%!].*$", r"\1pass", source, flags=re.MULTILINE)
    try:
        body = ast.parse(plain).body
    except SyntaxError:
        return _Said()
    names: dict[str, None] = {}
    imported: dict[str, str] = {}
    left: list[ast.AST] = [*reversed(body)]
    while left:
        node = left.pop()
        if isinstance(node, ast.Name):
            names[node.id] = None
            continue
        if isinstance(node, ast.Attribute):
            if chain := _chain(node):
                names[chain] = None
                continue
        elif (
            isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "dtcourse"
        ):
            imported |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
        inside: list[ast.AST] = []
        for value in node.__dict__.values():
            if isinstance(value, list):
                inside += [one for one in value if isinstance(one, ast.AST)]
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                inside.append(value)
        left += inside[::-1]
    defined = [node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    return _Said(tuple(names), imported, tuple(defined))


def _chain(node: ast.Attribute) -> str:
    """`naive.broadcast_steps` as written; empty where it is taken of something without a name."""
    words = [node.attr]
    inner = node.value
    while isinstance(inner, ast.Attribute):
        words.append(inner.attr)
        inner = inner.value
    return ".".join([inner.id, *words[::-1]]) if isinstance(inner, ast.Name) else ""


def _of_torch(source: str) -> list[str]:
    """What a cell takes of torch.distributed, which lessons call dist: torch.distributed.scatter."""
    chains = [name.split(".") for name in _said(source).names]
    return [
        f"torch.distributed.{words[1]}"
        for words in chains
        if len(words) > 1 and words[0] == "dist" and words[1] not in _EVERYWHERE
    ]


def _imported(notebook: Notebook) -> dict[str, str]:
    """The names that a notebook imports from dtcourse's techniques: ring -> dtcourse.collectives.ring."""
    names: dict[str, str] = {}
    for cell in code_cells(notebook):
        if "dtcourse" in cell["source"]:
            names |= _said(cell["source"]).imported
    ours = ("dtcourse.course", "dtcourse.plots", "dtcourse.launch", "dtcourse.data")
    return {name: full for name, full in names.items() if not full.startswith(ours)}


def _used(source: str, names: dict[str, str]) -> list[str]:
    """What a cell uses of what its notebook imports, by full names: dtcourse.collectives.naive.broadcast_steps."""
    found = []
    for chain in _said(source).names:
        first, _, rest = chain.partition(".")
        if first in names:
            found.append(f"{names[first]}.{rest}" if rest else names[first])
    return list(dict.fromkeys(found))
