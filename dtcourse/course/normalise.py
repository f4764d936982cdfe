"""One form for every committed notebook, so that a diff shows what a person changed and nothing else.

The form is what JupyterLab writes: to open a lesson and save it changes no byte of it.

ids            kept where they are well formed and unique; random ones are named after their section
metadata       kernel and language; of a cell its tags, topics, reasons and nbgrader's own
counts         1, 2, 3 ... in order
references     "lesson 06" is a link where that lesson is there (links.py)
outputs        no times, addresses, machine paths, widget state; streams joined
record         the hash of the code that the outputs came from, and how long it ran
"""

from __future__ import annotations

import copy
import re
from typing import Any

from dtcourse.course import links
from dtcourse.course.notebook import Cell, Notebook, code_cells, code_hash, sections
from dtcourse.course.reproducible import scrub

_CELL_METADATA = ("deletable", "editable", "nbgrader", "nbval_reason", "tags", "topics")
# What the Python kernel says of itself, and JupyterLab writes into each notebook that it opens: all but the
# version of Python, which differs from reader to reader (lab.py keeps it out of what JupyterLab saves).
LANGUAGE = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_RANDOM_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[0-9a-f]*\d)[0-9a-f]{8}")
_WIDGET = "application/vnd.jupyter.widget-view+json"
_WIDGET_TEXT = re.compile(r"^(interactive|[A-Z]\w*)\(.*(children=|value=|layout=)", re.DOTALL)


def normalise(notebook: Notebook, *, seconds: float | None = None) -> Notebook:
    """Bring a notebook into the one form, in place. `seconds` says that it has just been executed."""
    _name_cells(notebook)
    lessons = links.known()
    as_run_once(notebook["cells"])
    for cell in notebook["cells"]:
        cell["source"] = "\n".join(line.rstrip() for line in cell["source"].rstrip().split("\n"))
        cell["metadata"] = _cell_metadata(cell)
        kept = {key: cell[key] for key in ("attachments",) if cell.get(key)}
        if cell["cell_type"] == "markdown":
            cell["source"] = links.link(cell["source"], lessons)
        common = {key: cell[key] for key in ("cell_type", "id", "metadata", "source")}
        if cell["cell_type"] == "code":
            common |= {key: cell[key] for key in ("execution_count", "outputs")}
        cell.clear()
        cell.update(common, **kept)

    record = notebook["metadata"].get("dtcourse")
    record = dict(record) if isinstance(record, dict) else {}
    if seconds is not None:
        before = record.get("seconds") if record.get("code") == code_hash(notebook) else None
        # Of the same code the fastest run counts: what else a machine does only adds to the time.
        if not isinstance(before, (int, float)) or seconds < 0.97 * before:
            record["seconds"] = round(seconds, 1)
        record["code"] = code_hash(notebook)
    notebook["metadata"] = {
        "kernelspec": {
            "display_name": "Python 3 (ipykernel)",
            "language": "python",
            "name": "python3",
        },
        "language_info": copy.deepcopy(LANGUAGE),
    }
    if record:
        notebook["metadata"]["dtcourse"] = record
    notebook.update(nbformat=4, nbformat_minor=5)
    for key in set(notebook) - {"cells", "metadata", "nbformat", "nbformat_minor"}:
        del notebook[key]
    return notebook


def as_run_once(cells: list[Cell]) -> None:
    """Code cells as a committed notebook has them, in place, whoever ran them, when and how often.

    That is their counts, their outputs, and none of what a run leaves in their metadata.
    """
    count = 0
    for cell in cells:
        if cell["cell_type"] != "code":
            continue
        executed = cell.get("execution_count") is not None or bool(cell["outputs"])
        count += executed
        cell["execution_count"] = count if executed else None
        cell["outputs"] = _outputs(cell["outputs"], cell["execution_count"])
        cell["metadata"] = _cell_metadata(cell)


def staleness(notebook: Notebook) -> list[str]:
    """Why the outputs of a notebook are not those of its code: [] where they are."""
    cells = code_cells(notebook)
    if not cells:
        return []
    record = notebook["metadata"].get("dtcourse", {})
    if "code" not in record:
        return ["it was never executed by `dtcourse notebooks --execute`"]
    found = []
    if record["code"] != code_hash(notebook):
        found.append(
            "its code changed after it was executed: run `dtcourse notebooks --execute` on it"
        )
    counts = [cell.get("execution_count") for cell in cells]
    if counts != list(range(1, len(cells) + 1)):
        found.append(f"its cells were not executed in order: {counts}")
    return found


def _cell_metadata(cell: Cell) -> dict[str, Any]:
    kept = {
        key: cell["metadata"][key]
        for key in _CELL_METADATA
        if cell["metadata"].get(key) not in (None, [], "")
    }
    hidden = cell["metadata"].get("jupyter", {})
    if isinstance(hidden, dict) and hidden.get("source_hidden") is True:
        kept["jupyter"] = {"source_hidden": True}
    if isinstance(kept.get("tags"), list):
        kept["tags"] = sorted(set(map(str, kept["tags"])) - {"injected-parameters"})
    return kept


def _outputs(outputs: list[dict[str, Any]], count: int | None) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for output in outputs:
        kind = output.get("output_type")
        if kind == "stream":
            text = scrub("".join(output.get("text", "")))
            if kept and kept[-1]["output_type"] == "stream" and kept[-1]["name"] == output["name"]:
                kept[-1]["text"] += text
            else:
                kept.append({"output_type": "stream", "name": output["name"], "text": text})
        elif kind in ("display_data", "execute_result"):
            data = {key: _joined(key, value) for key, value in output.get("data", {}).items()}
            if _WIDGET in data:
                del data[_WIDGET]
                if _WIDGET_TEXT.match(data.get("text/plain", "")) or not data.get("text/plain"):
                    data.pop("text/plain", None)
            if not data:
                continue
            clean = {
                key: scrub(value)
                if isinstance(value, str) and not key.startswith("image/")
                else value
                for key, value in data.items()
            }
            # The size of a picture is worth keeping; nothing else in an output's metadata is.
            sizes = {
                key: value
                for key, value in output.get("metadata", {}).items()
                if key.startswith("image/")
            }
            fresh: dict[str, Any] = {"output_type": kind, "data": clean, "metadata": sizes}
            if kind == "execute_result":
                fresh["execution_count"] = count
            kept.append(fresh)
        elif kind == "error":
            kept.append(
                {
                    "output_type": "error",
                    "ename": output.get("ename", ""),
                    "evalue": scrub(output.get("evalue", "")),
                    "traceback": [scrub(line) for line in output.get("traceback", [])],
                }
            )
    return kept


def _joined(kind: str, value: Any) -> Any:
    """Text that a file holds as a list of lines, joined; JSON stays what it is."""
    if isinstance(value, list) and kind != "application/json" and not kind.endswith("+json"):
        return "".join(value)
    return value


def _name_cells(notebook: Notebook) -> None:
    """Give a stable id to each cell whose own is missing, malformed, random or used before."""
    taken: set[str] = set()
    nameless = []
    for heading, cell in sections(notebook):
        name = cell.get("id")
        if (
            isinstance(name, str)
            and _ID.fullmatch(name)
            and not _RANDOM_ID.fullmatch(name)
            and name not in taken
        ):
            taken.add(name)
        else:
            nameless.append((heading, cell))
    for heading, cell in nameless:
        stem = slug(heading) or "start"
        if cell["cell_type"] == "code":
            stem += "-code"
        name, number = stem, 1
        while name in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name)
        cell["id"] = name


def slug(text: str) -> str:
    """The letters and digits of a heading, joined by hyphens: "3. Break it!" is 3-break-it."""
    return "-".join(re.findall(r"[a-z0-9]+", text.lower()))[:48].strip("-")
