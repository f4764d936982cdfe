"""Every claim of the lessons that another lesson could contradict, with its cell, as one table for a person to read.

    python tools/claims.py    # writes docs/claims.md; `make notebooks` does it too

Three kinds of sentences are listed: those that claim something without exception ("always", "never", "only", ...),
those that give a number of a real machine, and those whose number is in no output that CI compares, but in one of a
cell that is marked as not the same everywhere: it rests on one machine's run. The script finds them and judges nothing.
What its readers settled, where two lessons differed, is the first part of the page; it is written by hand and kept.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "claims.md"
BEGIN = "<!-- from here on: python tools/claims.py -->\n"
RULE = re.compile(
    r"\b(always|never|only|fastest|fewest|cheapest|costs? nothing|for free|no other)\b",
    re.IGNORECASE,
)
MACHINE = re.compile(
    r"\b(H100|H200|A100|V100|B200|NVLink|NVSwitch|InfiniBand|PCIe|Ethernet|NCCL|DGX|HDR|NDR|GPUs?)\b"
)
QUANTITY = re.compile(
    r"\d\s*(?:×\s*10\S+\s*)?(?:[KMGTP]?i?B/s|[KMGT]?bit/s|[TGP]?FLOP/s|[KMGT]i?B\b|µs|ms\b|seconds|minutes|hours|days|"
    r"tokens|images|GPUs|GPU-hours|%)"
)

NUMBER = re.compile(
    r"(?<![\w.,])(?:\d+\.\d+|\d[\d,]*\d\d)(?![\w]|[.,]\d)"
)  # 0.155, 1,280 and 189, not 16
NOT_COMPARED = "nbval-ignore-output"


def sentences(markdown: str) -> Iterator[str]:
    """The sentences of a cell; a row of a table is one. Code and headings are left out."""
    text = re.sub(r"```.*?```|\$\$.*?\$\$", " ", markdown, flags=re.DOTALL)
    text = re.sub(r"</?(details|summary|code|sup|sub|br)>", " ", text)
    for block in re.split(r"\n\s*\n|\n(?=[-*|] |\||\d+\. )", text):
        line = " ".join(block.split())
        if line.startswith("#") or set(line) <= set("|:- "):
            continue
        for one in re.split(r"(?<=[.?!])\s+(?=[A-Z*_(`\[])", line):
            if one:
                yield one


def printed(cell: dict[str, Any]) -> str:
    """What the outputs of a cell say."""
    texts = (
        [*output.get("text", ()), *output.get("data", {}).get("text/plain", ())]
        for output in cell["outputs"]
    )
    return "\n".join("".join(text) for text in texts)


def resting_on(cells: list[dict[str, Any]]) -> dict[str, str]:
    """{number: the cell that printed it}, where the cell's output is not compared and no other cell has the number."""
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    loose = {cell["id"]: cell for cell in code if NOT_COMPARED in cell["metadata"].get("tags", ())}
    held = {
        number
        for cell in code
        for number in NUMBER.findall(
            "".join(cell["source"]) + "\n" + (printed(cell) if cell["id"] not in loose else "")
        )
    }
    return {
        number: name
        for name, cell in loose.items()
        for number in NUMBER.findall(printed(cell))
        if number not in held
    }


def claims(lesson: Path) -> Iterator[tuple[str, str, str]]:
    """(kind, cell id, sentence) of each sentence that claims; kind: "rule", "machine" or "one run"."""
    cells = json.loads(lesson.read_text(encoding="utf-8"))["cells"]
    loose = resting_on(cells)
    for cell in cells:
        if cell["cell_type"] != "markdown" or cell["id"] == "title":
            continue
        for sentence in sentences("".join(cell["source"])):
            if sentence.endswith("?"):
                continue
            if RULE.search(sentence):
                yield "rule", cell["id"], sentence
            if MACHINE.search(sentence) and QUANTITY.search(sentence):
                yield "machine", cell["id"], sentence
            found = {
                number: loose[number] for number in NUMBER.findall(sentence) if number in loose
            }
            if found:
                of = ", ".join(f"{number} of `{name}`" for number, name in found.items())
                yield "one run", cell["id"], f"{sentence} **({of})**"


def table(rows: list[tuple[str, str, str]]) -> str:
    """Markdown: lesson, cell, sentence."""
    lines = ["| lesson | cell | sentence |", "|---|---|---|"]
    lines += [
        f"| {lesson} | `{cell}` | {sentence.replace('|', chr(92) + '|')} |"
        for lesson, cell, sentence in rows
    ]
    return "\n".join(lines)


def page() -> str:
    """The generated part of docs/claims.md."""
    found: dict[str, list[tuple[str, str, str]]] = {"rule": [], "machine": [], "one run": []}
    for lesson in sorted((ROOT / "lessons").glob("*.ipynb")):
        for kind, cell, sentence in claims(lesson):
            found[kind].append((lesson.name.split("-")[0], cell, sentence))
    return (
        f"\n## Without exception ({len(found['rule'])})\n\n{table(found['rule'])}\n"
        f"\n## Numbers of real machines ({len(found['machine'])})\n\n{table(found['machine'])}\n"
        f"\n## Numbers that rest on one machine's run ({len(found['one run'])})\n\n{table(found['one run'])}\n"
    )


def main() -> None:
    """Write the generated part of the page, and keep the other."""
    kept = PAGE.read_text(encoding="utf-8").split(BEGIN)[0] if PAGE.exists() else "# Claims\n\n"
    PAGE.write_text(kept + BEGIN + page(), encoding="utf-8")


if __name__ == "__main__":
    main()
