"""A notebook file: read it, write it in one form, and what a lesson's first cell says of it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtcourse.course import links

Notebook = dict[str, Any]
Cell = dict[str, Any]

# The tag of a cell that prints what cannot be the same twice: nbval does not compare it.
IGNORED = "nbval-ignore-output"


class NotebookError(ValueError):
    """A file that is no notebook; the message is one sentence for the person who owns it."""


def parse(text: str | bytes, name: str = "this file") -> Notebook:
    """A notebook from its JSON, with every cell's and output's text joined to one string.

    Raises NotebookError with a sentence that says what is wrong: no JSON, no notebook, a format before version 4.
    """
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise NotebookError(
                f"{name} is not a notebook: it is not text. Was it zipped, or saved by another program?"
            ) from None
    if not text.strip():
        raise NotebookError(
            f"{name} is empty: save the notebook in JupyterLab and hand it in again."
        )
    try:
        notebook = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        hint = (
            " There are git conflict marks in it."
            if re.search(r"^<{7} |^>{7} ", text, re.MULTILINE)
            else ""
        )
        raise NotebookError(f"{name} is not a notebook: it is not JSON{where}.{hint}") from None
    version = notebook.get("nbformat", 4) if isinstance(notebook, dict) else 4
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list) and version == 4:
        raise NotebookError(f"{name} is not a notebook: it is JSON, but holds no list of cells.")
    if version != 4:  # format 3 has its cells elsewhere
        raise NotebookError(
            f"{name} is in notebook format {notebook.get('nbformat')}, and 4 is needed: open and save it in JupyterLab."
        )
    if not isinstance(notebook.get("metadata", {}), dict):
        raise NotebookError(f"{name} is not a notebook: its metadata is no mapping.")
    notebook.setdefault("metadata", {})
    for number, cell in enumerate(notebook["cells"], 1):
        if not isinstance(cell, dict) or cell.get("cell_type") not in ("code", "markdown", "raw"):
            raise NotebookError(f"{name} is not a notebook: its cell {number} is no cell.")
        source = cell.get("source", "")
        if isinstance(source, list):
            source = "".join(line for line in source if isinstance(line, str))
        if not isinstance(source, str):
            raise NotebookError(f"{name} is not a notebook: its cell {number} has no text.")
        cell["source"] = source
        if not isinstance(cell.get("metadata"), dict):
            cell["metadata"] = {}
        if cell["cell_type"] == "code":
            cell.setdefault("execution_count", None)
            if not isinstance(cell.get("outputs"), list):
                cell["outputs"] = []
    return notebook


def read(path: Path | str) -> Notebook:
    """The notebook in a file. See `parse` for what it may raise."""
    path = Path(path)
    return parse(path.read_bytes(), path.name)


def dumps(notebook: Notebook) -> str:
    """A notebook as the text that JupyterLab writes when it saves it, to the byte.

    Keys sorted, one space a level, what is text as lists of lines (so that a diff reads), a picture as one
    string, a newline at the end: nbformat's rules. And 18 for 18.0: JavaScript has one kind of number.
    """
    split = json.loads(json.dumps(notebook), parse_float=_number)
    for cell in split["cells"]:
        cell["source"] = cell["source"].splitlines(keepends=True)
        for output in cell.get("outputs", []):
            if isinstance(output.get("text"), str):
                output["text"] = output["text"].splitlines(keepends=True)
            _split_bundle(output.get("data", {}))
        for attachment in cell.get("attachments", {}).values():
            _split_bundle(attachment)
    return json.dumps(split, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _number(text: str) -> int | float:
    """A float as JavaScript would write it."""
    return int(float(text)) if float(text).is_integer() else float(text)


def _split_bundle(data: dict[str, Any]) -> None:
    """The text among the representations of one output, as lists of lines, in place."""
    for kind, value in data.items():
        text = kind.startswith("text/") or kind in ("application/javascript", "image/svg+xml")
        if text and isinstance(value, str):
            data[kind] = value.splitlines(keepends=True)


def write(notebook: Notebook, path: Path | str) -> None:
    """Write a notebook, all of it or nothing of it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(dumps(notebook), encoding="utf-8")
    part.replace(path)


def tags(cell: Cell) -> list[str]:
    """The tags of a cell."""
    found = cell["metadata"].get("tags", [])
    return [tag for tag in found if isinstance(tag, str)] if isinstance(found, list) else []


def code_cells(notebook: Notebook) -> list[Cell]:
    """The code cells that hold something, in order."""
    return [
        cell for cell in notebook["cells"] if cell["cell_type"] == "code" and cell["source"].strip()
    ]


def output_text(output: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every text in an output, with its kind ("stream", "text/plain", ...). Images are left out."""
    if isinstance(output.get("text"), (str, list)):
        yield "stream", "".join(output["text"])
    for kind, value in output.get("data", {}).items():
        if kind.startswith("image/") and kind != "image/svg+xml":
            continue
        yield kind, "".join(value) if isinstance(value, (str, list)) else json.dumps(value)
    if output.get("output_type") == "error":
        yield "error", f"{output.get('ename')}: {output.get('evalue')}"


def code_hash(notebook: Notebook) -> str:
    """A short hash of all code in order: outputs recorded with another hash are stale."""
    digest = hashlib.sha256()
    for cell in code_cells(notebook):
        digest.update(cell["source"].strip().encode() + b"\0")
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Card:
    """What a lesson says of itself in its first cell."""

    title: str
    minutes: int | None
    needs: str
    know_first: str


def card(notebook: Notebook) -> Card:
    """Read the title cell: heading, minutes, what it needs, what to know first ("" where it does not say)."""
    text = links.without(notebook["cells"][0]["source"]) if notebook["cells"] else ""
    heading = re.search(r"^#\s+(?:\d+[a-z]?\s*[·:.\-]\s*|\d+\s+)?(.+)$", text, re.MULTILINE)
    minutes = re.search(r"(\d+)\s*(?:to\s*\d+\s*)?min", text)
    return Card(
        title=heading[1].strip() if heading else "",
        minutes=int(minutes[1]) if minutes else None,
        needs=_after(text, r"needs?"),
        know_first=_after(text, r"(?:what to )?know first"),
    )


def _after(text: str, label: str) -> str:
    """The sentence after a bold label such as **Needs:**."""
    match = re.search(
        rf"\*\*{label}:?\*\*:?\s*(.+?)(?=\s*\*\*[A-Z]|\n\n|\Z)", text, re.DOTALL | re.IGNORECASE
    )
    return " ".join(match[1].split()).rstrip(".") if match else ""


def sections(notebook: Notebook) -> list[tuple[str, Cell]]:
    """Every cell with the heading (## or deeper, else the title) that it stands under."""
    under, found = "", []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            fenced = re.sub(r"^```.*?^```", "", cell["source"], flags=re.DOTALL | re.MULTILINE)
            headings = re.findall(r"^#{1,4}\s+(.+?)\s*$", fenced, re.MULTILINE)
            if headings:
                under = headings[-1]
        found.append((under, cell))
    return found
