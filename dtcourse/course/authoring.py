"""A notebook as a text file of cells, and back: for writing lessons in an editor.

    # %% [markdown] id=title
    # # 02 · Processes and ranks
    # %% id=parameters tags=parameters
    WORLD_SIZE = 4
    # %% id=first-launch topics=02.spmd,02.launching tags=nbval-ignore-output reason="prints seconds"
    run = launch(step, WORLD_SIZE)

The markdown of a cell is commented with "# ", or stands between two lines of three quotes. On a line of
marks: id (give every cell one), topics, tags, reason (of an output that nbval does not compare), and, for
solutions, solution=NAME or check=NAME points=4 (nbgrader's metadata), hidden (folded source).

    python -m dtcourse.course.authoring build lesson.py lessons/02-processes-and-ranks.ipynb
    python -m dtcourse.course.authoring text lessons/02-processes-and-ranks.ipynb lesson.py

Building over a notebook keeps the outputs of cells whose code has not changed. The notebook is what
is committed; the text file is a way to write it.
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

from dtcourse.course import notebook as nbfile
from dtcourse.course.normalise import normalise

_MARK = re.compile(r"^# %%(?P<rest>.*)$")
_KEYS = {"id", "topics", "tags", "reason", "solution", "check", "points"}


def build(text: str, before: nbfile.Notebook | None = None) -> nbfile.Notebook:
    """A normalised notebook from its text.

    text:   cells, as this module's docstring describes them
    before: the notebook as it was: outputs of cells with the same id and code are kept from it

    Raises ValueError for text before the first mark, an unknown key, or an id used twice, with its line.
    """
    cells: list[nbfile.Cell] = []
    lines: list[str] = []
    ids: set[str] = set()

    def close() -> None:
        if cells:
            cells[-1]["source"] = _source(lines, cells[-1]["cell_type"])

    for number, line in enumerate(text.splitlines(), 1):
        match = _MARK.match(line)
        if not match:
            if not cells and line.strip() and not line.startswith("#"):
                raise ValueError(
                    f"line {number}: the text starts with a mark, # %% [markdown] id=title"
                )
            lines.append(line)
            continue
        close()
        lines = []
        cell = _cell(match["rest"], number)
        if cell.get("id") in ids:
            raise ValueError(f"line {number}: the id {cell['id']!r} is used twice")
        if "id" in cell:
            ids.add(cell["id"])
        cells.append(cell)
    close()
    old = {cell.get("id"): cell for cell in before["cells"]} if before else {}
    for cell in cells:
        was = old.get(cell.get("id"))
        if (
            was
            and cell["cell_type"] == was["cell_type"] == "code"
            and was["source"].strip() == cell["source"].strip()
        ):
            cell.update(outputs=was["outputs"], execution_count=was["execution_count"])
    return normalise({"cells": cells, "metadata": before["metadata"] if before else {}})


def text(notebook: nbfile.Notebook) -> str:
    """The text of a notebook, which `build` turns back into it."""
    parts = []
    for cell in notebook["cells"]:
        data = cell["metadata"]
        words = ["# %%"] + (["[markdown]"] if cell["cell_type"] == "markdown" else [])
        words += [f"id={cell['id']}"] if "id" in cell else []
        for key in ("topics", "tags"):
            words += [f"{key}={','.join(data[key])}"] if data.get(key) else []
        words += [f"reason={shlex.quote(data['nbval_reason'])}"] if data.get("nbval_reason") else []
        if mark := data.get("nbgrader"):
            kind = "check" if mark["grade"] else "solution"
            words += [f"{kind}={mark['grade_id']}"] + (
                [f"points={mark['points']}"] if mark["grade"] else []
            )
        words += ["hidden"] if data.get("jupyter", {}).get("source_hidden") else []
        source = cell["source"]
        if cell["cell_type"] == "markdown":
            source = "\n".join(f"# {line}".rstrip() for line in source.split("\n"))
        parts.append(" ".join(words) + "\n" + source)
    return "\n\n".join(parts) + "\n"


def _cell(marks: str, number: int) -> nbfile.Cell:
    kind = "code"
    metadata: dict[str, Any] = {}
    cell: dict[str, Any] = {"metadata": metadata}
    found: dict[str, str] = {}
    for word in shlex.split(marks):
        key, equals, said = word.partition("=")
        if word in ("[markdown]", "[md]"):
            kind = "markdown"
        elif word == "hidden":
            metadata["jupyter"] = {"source_hidden": True}
        elif equals and key in _KEYS:
            found[key] = said
        else:
            raise ValueError(
                f"line {number}: {word!r} is no mark; there are {', '.join(sorted(_KEYS))}, hidden"
            )
    if "id" in found:
        cell["id"] = found["id"]
    for key in ("topics", "tags"):
        if found.get(key):
            metadata[key] = [name.strip() for name in found[key].split(",")]
    if "reason" in found:
        metadata["nbval_reason"] = found["reason"]
        metadata["tags"] = [*metadata.get("tags", []), "nbval-ignore-output"]
    if "solution" in found or "check" in found:
        graded = "check" in found
        metadata["nbgrader"] = {
            "grade": graded,
            "solution": not graded,
            "locked": graded,
            "task": False,
            "grade_id": found["check" if graded else "solution"],
            "schema_version": 3,
        }
        if graded:
            metadata["nbgrader"]["points"] = int(found.get("points", 1))
    cell["cell_type"] = kind
    if kind == "code":
        cell.update(outputs=[], execution_count=None)
    return cell


def _source(lines: list[str], kind: str) -> str:
    while lines and not lines[0].strip():
        lines = lines[1:]
    while lines and not lines[-1].strip():
        lines = lines[:-1]
    if kind == "markdown":
        if (
            lines
            and lines[0].strip() in ('"""', "'''", 'r"""')
            and lines[-1].strip() == lines[0].strip()[-3:]
        ):
            lines = lines[1:-1]
        else:
            lines = [re.sub(r"^# ?", "", line) for line in lines]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """`build TEXT NOTEBOOK` or `text NOTEBOOK TEXT`."""
    words = sys.argv[1:] if arguments is None else arguments
    if len(words) != 3 or words[0] not in ("build", "text"):
        print(__doc__)
        return 2
    source, target = Path(words[1]), Path(words[2])
    try:
        if words[0] == "build":
            before = nbfile.read(target) if target.exists() else None
            nbfile.write(build(source.read_text(encoding="utf-8"), before), target)
        else:
            target.write_text(text(nbfile.read(source)), encoding="utf-8")
    except ValueError as error:
        print(f"{source}: {error}", file=sys.stderr)
        return 1
    print(f"{target} written")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
