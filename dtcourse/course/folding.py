"""A lesson's answers, folded: in a student's copy no prediction is spoiled by the text under it.

A lesson asks ("**Predict.** ..."), runs, and answers ("Answer: (b), 40 ms."). A student's copy has no outputs yet, and
the answer would stand on one screen with its question: so it waits in a fold. The fold that the question has of
its own, with what can be known before the run, goes into the same one.
"""

from __future__ import annotations

import re

from dtcourse.course.notebook import Cell, Notebook

# "Answer: ...", and "Answer (a): ...", where a text begins.
_ANSWER = re.compile(r"Answers?(?P<part> \([a-z]\))?: *")
_QUESTION = re.compile(r"\*\*Predict\b")
_FOLD = re.compile(
    r"\n*<details>\s*<summary>\s*Answers?\s*</summary>\n*(?P<text>.*?)\n*</details>", re.DOTALL
)
# What begins something new, which an answer cannot go on through.
_NEW = re.compile(r"#|\*\*|<details")
_LAST_SENTENCE = re.compile(r"(?<=[.?!])\s+(?P<lead>(?:(?![.?!]\s).)+)$", re.DOTALL)
# 5.8, 57,660 and 63; a lone digit says nothing, it is in every other sentence.
_FIGURE = re.compile(r"\d[\d,]*\.\d+|\d[\d,]*\d")


def fold(notebook: Notebook) -> Notebook:
    """Fold each answer of a lesson, in place; a lesson whose answers are folded stays as it is."""
    asked: Cell | None = None
    for cell in notebook["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        if _ANSWER.match(cell["source"]):
            question, expected = _opened(asked["source"]) if asked else ("", "")
            if asked and expected:
                asked["source"] = question
            cell["source"] = _folded(cell["source"], question, expected)
        if _QUESTION.search(cell["source"]):
            asked = cell
    return notebook


def _opened(text: str) -> tuple[str, str]:
    """The text without the fold of its last question, and what stood in that fold: "" where there is none."""
    last = [found.start() for found in _QUESTION.finditer(text)][-1]
    fold = _FOLD.search(text, last)
    return (text[: fold.start()] + text[fold.end() :], fold["text"]) if fold else (text, "")


def _folded(text: str, question: str, expected: str) -> str:
    """A text that begins with an answer, with what tells the answer in a fold, and the rest after it."""
    first, *after = text.split("\n\n")
    first = _ANSWER.sub(lambda found: (found["part"] or "").lstrip() + " ", first, count=1).strip()
    first = "**With the run:** " + first if expected else first[:1].upper() + first[1:]
    told = _figures(f"{expected} {first}") - _figures(question)
    answer, lead = first, ""
    cut = None if after or not first.endswith((":", "?")) else _LAST_SENTENCE.search(first)
    if cut and not told & _figures(cut["lead"]):
        # "The course's version:" belongs to the cell that follows.
        answer, lead = first[: cut.start()], cut["lead"]
    end = 0
    for number, block in enumerate(after):
        if _NEW.match(block):
            break
        goes_on = number == 0 and (first.endswith(":") or block.startswith("- "))
        if goes_on or told & _figures(block):
            end = number + 1
    inside = [part for part in (expected, answer, *after[:end]) if part]
    # Markdown in HTML is markdown only after an empty line.
    fold = "<details><summary>Answer</summary>\n\n" + "\n\n".join(inside) + "\n\n</details>"
    return "\n\n".join(part for part in (fold, lead, *after[end:]) if part)


def _figures(text: str) -> set[str]:
    return set(_FIGURE.findall(text))
