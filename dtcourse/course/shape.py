"""What a lesson has to hold, whoever wrote it: design.md, section 4, as sentences about what is missing."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping

from dtcourse.course.execute import parameters
from dtcourse.course.normalise import staleness
from dtcourse.course.notebook import IGNORED, Cell, Notebook, card, code_cells, output_text, tags
from dtcourse.course.reproducible import REPLACEMENTS
from dtcourse.course.topics import LATER

PARAMETERS = ("WORLD_SIZE", "DEVICE", "BACKEND", "CLUSTER")
SECTIONS = ("Break it", "The real thing", "What to remember")
LONGEST = 25
MEDIAN = 15
COMPARED = 0.7

_UNSAID = [
    pattern
    for name, pattern, _ in REPLACEMENTS
    if name not in ("process", "port", "standard-library")
]


def lesson_faults(notebook: Notebook, number: str, topics: Mapping[str, str]) -> list[str]:
    """Every way in which a lesson is out of shape; [] where it is in shape.

    notebook: as `notebook.read` gives it
    number:   the lesson's, "04"
    topics:   the syllabus's topics of this lesson: full id ("04.ring") to description
    """
    return [
        *_title(notebook),
        *_parameters(notebook),
        *_topics(notebook, number, topics),
        *_sizes(notebook),
        *_sections(notebook),
        *_compared(notebook),
        *common_faults(notebook),
    ]


def common_faults(notebook: Notebook) -> list[str]:
    """What holds for solutions as for lessons: executed, without errors, warnings or traces of a machine."""
    found = list(staleness(notebook))
    for cell in notebook["cells"]:
        name = cell.get("id", "?")
        for output in cell.get("outputs", []):
            if output.get("output_type") == "error":
                found.append(
                    f"cell {name} ends in {output.get('ename')}: use expect_error for what must fail"
                )
            for kind, text in output_text(output):
                if kind in ("stream", "text/plain") and re.search(
                    r"^.*\w*Warning: ", text, re.MULTILINE
                ):
                    found.append(f"cell {name} prints a warning: repair what it warns of")
                if kind.startswith(("stream", "text/")) and any(
                    re.search(pattern, text) for pattern in _UNSAID
                ):
                    found.append(f"cell {name} prints an address or a path of this machine")
                if kind == "application/vnd.jupyter.widget-view+json":
                    found.append(
                        f"cell {name} holds a widget's state: run `dtcourse notebooks` on it"
                    )
    if "widgets" in notebook["metadata"]:
        found.append("it holds widget state: run `dtcourse notebooks` on it")
    for cell in code_cells(notebook):
        if IGNORED in tags(cell) and not str(cell["metadata"].get("nbval_reason", "")).strip():
            found.append(
                f"cell {cell.get('id')} is tagged {IGNORED} without a reason (metadata nbval_reason)"
            )
    return list(dict.fromkeys(found))


def _title(notebook: Notebook) -> list[str]:
    if not notebook["cells"] or notebook["cells"][0]["cell_type"] != "markdown":
        return ["the first cell is not the title"]
    text = notebook["cells"][0]["source"]
    said = card(notebook)
    found = []
    if not said.title:
        found.append("the title cell has no heading (# 04 · All-reduce algorithms)")
    if "you will be able to" not in text.lower():
        found.append("the title cell does not say what `you will be able to` do")
    if not said.know_first:
        found.append("the title cell does not say what to know first (**Know first:** ...)")
    if said.minutes is None:
        found.append(
            "the title cell does not say how many minutes it takes (**Takes:** 45 minutes.)"
        )
    if not said.needs:
        found.append("the title cell does not say what it needs (**Needs:** two CPU cores.)")
    early = []
    for cell in notebook["cells"]:
        if cell["metadata"].get("topics"):
            break
        early.append(cell)
    if not any(_pictures(cell) for cell in early):
        found.append("no picture before the first topic")
    return found


def _pictures(cell: Cell) -> bool:
    if cell["cell_type"] == "markdown":
        return bool(re.search(r"!\[|<svg|<img|^```(mermaid|text)", cell["source"], re.MULTILINE))
    return any(
        kind.startswith("image/")
        for output in cell.get("outputs", [])
        for kind in output.get("data", {})
    )


def _parameters(notebook: Notebook) -> list[str]:
    cells = [cell for cell in notebook["cells"] if "parameters" in tags(cell)]
    if len(cells) != 1:
        return [f"{len(cells)} cells are tagged `parameters`; exactly one has to be"]
    try:
        missing = [name for name in PARAMETERS if name not in parameters(notebook)]
    except ValueError as error:
        return [str(error)]
    found = [f"the parameters cell does not set {', '.join(missing)}"] if missing else []
    if not any("use_cluster(CLUSTER)" in "".join(cell["source"]) for cell in code_cells(notebook)):
        found.append("no cell calls use_cluster(CLUSTER), so its launches stay on this machine")
    return found


def _topics(notebook: Notebook, number: str, topics: Mapping[str, str]) -> list[str]:
    found, taught = [], set()
    for cell in notebook["cells"]:
        named = cell["metadata"].get("topics", [])
        if not isinstance(named, list) or not all(isinstance(topic, str) for topic in named):
            found.append(f"cell {cell.get('id')}: topics is not a list of names")
            continue
        for topic in named:
            if "." not in topic:
                found.append(f"cell {cell.get('id')}: write the topic as {number}.{topic}")
            elif topic.startswith(f"{number}.") and topic not in topics:
                found.append(f"cell {cell.get('id')}: {topic} is no topic of the syllabus")
        if cell["cell_type"] == "code":
            taught.update(named)
    missing = [topic for topic in topics if topic not in taught | LATER]
    if missing:
        found.append(f"no code cell teaches {', '.join(missing)} (cell metadata `topics`)")
    if early := sorted(taught & LATER):
        found.append(f"{', '.join(early)}: taught now, so take it out of LATER in course/topics.py")
    return found


def _lines(cell: Cell) -> int:
    return sum(1 for line in cell["source"].splitlines() if line.strip())


def _sizes(notebook: Notebook) -> list[str]:
    cells = code_cells(notebook)
    if not cells:
        return ["it has no code"]
    found = [
        f"cell {cell.get('id')} has {_lines(cell)} lines of code; {LONGEST} is the most"
        for cell in cells
        if _lines(cell) > LONGEST
    ]
    if (median := statistics.median(map(_lines, cells))) > MEDIAN:
        found.append(f"its median code cell has {median:g} lines; {MEDIAN} is the most")
    return found


def _sections(notebook: Notebook) -> list[str]:
    text = "\n".join(
        cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown"
    )
    headings = " | ".join(re.findall(r"^#{2,4}\s+(.+)$", text, re.MULTILINE)).lower()
    return [f"it has no section `{name}`" for name in SECTIONS if name.lower() not in headings]


def _compared(notebook: Notebook) -> list[str]:
    cells = [cell for cell in code_cells(notebook) if cell["outputs"]]
    compared = [cell for cell in cells if IGNORED not in tags(cell)]
    if cells and len(compared) < COMPARED * len(cells):
        return [
            f"nbval compares {len(compared)} of the {len(cells)} cells with output; at least {COMPARED:.0%} has to "
            "be compared"
        ]
    return []


def describe(faults: list[str]) -> str:
    """The faults as lines of a report."""
    return "\n".join(f"  - {fault}" for fault in faults) or "  in shape"
