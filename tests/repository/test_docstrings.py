"""Docstrings are of one dialect, CONTRIBUTING's: arguments as aligned `name: text`,
then a sentence for what is raised."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("benchmarks", "dtcourse", "gallery", "lessons/scripts", "studies", "tests", "tools")

_NAMES = (
    "Args|Arguments|Parameters|Other Parameters|Returns|Yields|Raises|Warns|Attributes|Methods|Notes|Examples?|See "
    "Also"
)
NUMPY = re.compile(rf"^[ \t]*(?:{_NAMES}):?[ \t]*\n[ \t]*[-=~]{{3,}}[ \t]*$", re.MULTILINE)
GOOGLE = re.compile(rf"^[ \t]*(?:{_NAMES}):[ \t]*$", re.MULTILINE)
SPHINX = re.compile(r"^[ \t]*:(?:param|type|returns?|rtype|raises?)\b[^:\n]*:", re.MULTILINE)


def docstrings(code: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring: of the file, of classes and functions, and of attributes."""
    nodes: list[ast.AST] = [ast.parse(code)]
    for node in nodes:  # which grows, by statements alone: expressions are most of a file
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            nodes += getattr(node, block, ())
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


def sections(code: str) -> list[str]:
    """What stands in a docstring of `code` and is of another dialect."""
    return [
        f"line {line}: {found.group().strip()!r}"
        for line, text in docstrings(code)
        for form in (NUMPY, GOOGLE, SPHINX)
        if (found := form.search(text))
    ]


def test_no_docstring_has_sections():
    bad = {}
    for folder in FOLDERS:
        for path in sorted(Path(ROOT, folder).rglob("*.py")):
            if found := sections(path.read_text(encoding="utf-8")):
                bad[str(path.relative_to(ROOT))] = found
    assert not bad, (
        "write arguments as `name: text`, and `Raises ValueError if ...` as a sentence (CONTRIBUTING.md)"
    )


OTHERS = {
    "NumPy": "Raises\n    ------\n    ValueError\n        If it is negative.",
    "NumPy's arguments": "Parameters\n    ----------\n    size : int",
    "Google": "Args:\n        size: of the block",
    "Sphinx": ":param size: of the block",
}
OURS = """Cuts a block.

    size:  of the block, bytes;  Returns: no section, since a name follows on the line
    rest:  what is left

    rank 0 | rank 1
    ------ | ------

    Raises ValueError if it is negative.
"""


@pytest.mark.parametrize("name", OTHERS)
def test_another_dialect_is_found(name):
    code = f'def cut(size):\n    """Cuts.\n\n    {OTHERS[name]}\n    """\n'
    assert len(sections(code)) == 1
    assert len(sections("class Block:\n" + textwrap.indent(code, "    "))) == 1


def test_ours_passes():
    assert not sections(f'def cut(size):\n    """{OURS}    """\n')
