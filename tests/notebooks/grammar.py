"""Finds "1 ranks" in what a notebook prints."""

from __future__ import annotations

import re

from dtcourse.course import notebook as nbfile
from dtcourse.course.notebook import Notebook

# What this course counts. A list, since no rule tells the noun of "1 ranks" from the verb of "rank 1 sends".
# Without "time": "1 times the bytes" is a factor.
_NOUNS = """answer batch bucket byte call check chunk class collective core device element epoch event exercise file
    GPU gather group hop image lane layer line list machine message micro-batch minute node number operation option
    parameter part pass piece point process question rank reader replica request round row run sample second seed
    segment sequence shard stage start step tensor test thread tile token trial unit value vector worker
    all-reduce all-gather reduce-scatter"""
_MANY = "|".join(
    rf"{noun}{'es' if noun.endswith(('ch', 'ss')) else 's'}" for noun in _NOUNS.split()
)
_WRONG = re.compile(rf"(?<![\w.,:/=-])(?<!- )(?<!− )1 (?:[a-z]+ )?(?:{_MANY})\b")


def wrong_plurals(text: str) -> list[str]:
    """Each "1 steps" in a text; "p - 1 steps" is none."""
    return _WRONG.findall(text)


def wrong_in(notebook: Notebook) -> list[str]:
    """Each of them in what a notebook has printed, with its cell."""
    return [
        f"{cell.get('id')}: {words}"
        for cell in nbfile.code_cells(notebook)
        for output in cell["outputs"]
        for kind, text in nbfile.output_text(output)
        if kind in ("stream", "text/plain")
        for words in wrong_plurals(text)
    ]
