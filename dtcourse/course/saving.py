"""What a reader's save leaves of a committed notebook: nothing that only says that it was run again."""

from __future__ import annotations

from typing import Any

from dtcourse.course import notebook as nbfile


def as_before(notebook: nbfile.Notebook, before: nbfile.Notebook) -> None:
    """Of a notebook that was run again, unchanged, what differs from run to run is as it was before, in place.

    That is what nbval does not compare either: the pictures' bytes, and the outputs of cells that are tagged so.
    Where a line of code differs from what was executed for the record, the notebook is another one, and nothing
    is taken back.
    """
    if notebook["metadata"]["dtcourse"]["code"] != nbfile.code_hash(notebook):
        return
    outputs = {cell.get("id"): cell["outputs"] for cell in nbfile.code_cells(before)}
    for cell in nbfile.code_cells(notebook):
        was, now = outputs.get(cell.get("id"), []), cell["outputs"]
        failed = any(output["output_type"] == "error" for output in now)
        ignored = nbfile.IGNORED in nbfile.tags(cell) and not failed
        if ignored or [*map(_compared, now)] == [*map(_compared, was)]:
            cell["outputs"] = was


def _compared(output: dict[str, Any]) -> dict[str, Any]:
    """An output without its pictures' bytes."""
    data = {
        key: ""
        if key.startswith("image/")
        else "".join(value)
        if key.startswith("text/")
        else value
        for key, value in output.get("data", {}).items()
    }
    kept = {key: value for key, value in output.items() if key != "metadata"}
    text = {"text": "".join(output["text"])} if "text" in output else {}
    return {**kept, **text, "data": data}
