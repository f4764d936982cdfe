"""A small table: HTML in a notebook, aligned text elsewhere."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dtcourse.plots.units import plain_text
from dtcourse.plural import plural

Format = str | Callable[[Any], str]


class Table:
    """Rows of text under column names. str(table) is aligned text; a notebook shows HTML in the page's own colours."""

    def __init__(
        self,
        columns: Sequence[str],
        rows: Sequence[Sequence[str]],
        *,
        numeric: Sequence[bool],
        caption: str | None,
        highlight: frozenset[int],
    ) -> None:
        self.columns, self.rows = list(columns), [list(row) for row in rows]
        self.numeric, self.caption, self.highlight = list(numeric), caption, highlight

    def __repr__(self) -> str:
        cells = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(len(self.columns))]
        lines = [
            "  ".join(
                text.rjust(width) if right else text.ljust(width)
                for text, width, right in zip(row, widths, self.numeric, strict=True)
            ).rstrip()
            for row in cells
        ]
        lines.insert(1, "  ".join("-" * width for width in widths))
        for i in self.highlight:
            lines[i + 2] += "  <"
        return "\n".join([self.caption, *lines] if self.caption else lines)

    def _repr_html_(self) -> str:
        # No colour is set: the page's own text colour is right on a light and on a dark page. Class "dataframe" is
        # what Jupyter and the book's theme style.
        def row(cells: Sequence[str], tag: str, bold: bool = False) -> str:
            weight = "font-weight:bold;" if bold else ""
            return "".join(
                f'<{tag} style="text-align:{"right" if right else "left"};{weight}">{html.escape(cell)}</{tag}>'
                for cell, right in zip(cells, self.numeric, strict=True)
            )

        caption = (
            f'<caption style="text-align:left;caption-side:top;color:inherit;padding-bottom:0.4em;">'
            f"{html.escape(self.caption)}</caption>"
            if self.caption
            else ""
        )
        body = "\n".join(
            f"<tr>{row(cells, 'td', i in self.highlight)}</tr>" for i, cells in enumerate(self.rows)
        )
        return (
            f'<table class="dataframe" border="1">{caption}\n<thead><tr>{row(self.columns, "th")}</tr></thead>\n'
            f"<tbody>\n{body}\n</tbody></table>"
        )


def table(
    rows: Any,
    *,
    columns: Sequence[str] | None = None,
    caption: str | None = None,
    formats: Mapping[str, Format] | None = None,
    highlight: int | Sequence[int] | None = None,
) -> Table:
    """A table of any rows.

    rows: dicts; or {"label": dict}, whose labels become the first column; or tuples, with `columns`
    columns: which, in this order; default all, in order of first appearance
    formats: {"seconds": "{:.2f}", "memory": plots.bytes_text}; other numbers are written with three digits
    highlight: numbers of the rows that matter, from 0: in bold
    """
    records = _records(rows, columns)
    names = (
        list(columns) if columns is not None else list(dict.fromkeys(k for r in records for k in r))
    )
    if not names:
        raise ValueError("a table needs rows: dicts, or tuples with columns=[...]")
    formats = dict(formats or {})
    for name in formats:
        if name not in names:
            raise ValueError(
                f"formats names the column {name!r}; the columns are {', '.join(map(str, names))}"
            )
    cells = [[_cell(r.get(n, ""), formats.get(n)) for n in names] for r in records]
    numeric = [
        bool(records)
        and all(_is_number(r[n]) for r in records if r.get(n) not in (None, ""))
        and any(_is_number(r.get(n)) for r in records)
        for n in names
    ]
    marked = [] if highlight is None else [highlight] if isinstance(highlight, int) else highlight
    if any(not 0 <= i < len(records) for i in marked):
        raise ValueError(f"highlight names rows 0 to {len(records) - 1}; got {list(marked)}")
    return Table(
        [str(n) for n in names],
        cells,
        numeric=numeric,
        caption=caption,
        highlight=frozenset(marked),
    )


def _records(rows: Any, columns: Sequence[str] | None) -> list[dict[str, Any]]:
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # a pandas DataFrame
        return rows.to_dict("records")
    if isinstance(rows, Mapping):
        return [
            {"": label, **row} if isinstance(row, Mapping) else {"": label, "value": row}
            for label, row in rows.items()
        ]
    records = []
    for row in rows:
        if isinstance(row, Mapping):
            records.append(dict(row))
        elif columns is None or len(row) != len(columns):
            raise ValueError(
                f"a row of {plural(len(row), 'value')} needs as many columns=[...]; "
                f"got {'none' if columns is None else len(columns)}"
            )
        else:
            records.append(dict(zip(columns, row, strict=True)))
    return records


def _cell(value: Any, form: Format | None) -> str:
    if value is None or value == "":
        return ""
    if form is not None:
        return form.format(value) if isinstance(form, str) else str(form(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return plain_text(value) if _is_number(value) else str(value)


def _is_number(value: Any) -> bool:
    return (
        not isinstance(value, bool | str)
        and hasattr(value, "__float__")
        and getattr(value, "ndim", 0) == 0
    )
