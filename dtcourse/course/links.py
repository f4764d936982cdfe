"""References from one lesson to another: a link where that lesson is there, plain text where it is still to come.

Authors write "lesson 06", "lesson 14b" or "lessons 14 and 15" in markdown; `normalise` makes links of them, and takes
a link away whose lesson is gone. A link reads ../lessons/06-data-parallel.ipynb, which is right in lessons/,
exercises/, solutions/ and my/, since these are siblings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dtcourse.course import places

# "lesson 06"; "lessons 03, 04 and 06"; "lessons 03 (all-reduce) and 06".
_REFERENCE = re.compile(
    r"\b(?P<word>[Ll]essons?)(?P<gap>[ \n])(?P<first>\d\d[a-z]?)\b"
    r"(?P<rest>(?:(?: \([^()\n]*\))?(?:,? and|,? or|,| to)[ \n]\d\d[a-z]?\b)*)"
)
_LINK = re.compile(r"\[(?P<text>(?:[Ll]essons?[ \n])?\d\d[a-z]?)\]\(\.\./lessons/[^()\s]*\.ipynb\)")
# What is shown as it stands, and links of another kind.
_VERBATIM = re.compile(r"```.*?(?:```|\Z)|`[^`\n]*`|\[[^\]\[]*\]\([^()\s]*\)", re.DOTALL)


def link(markdown: str, lessons: Mapping[str, str]) -> str:
    """The text with each reference to a lesson in `lessons` (number: file name) linked, and no other."""
    plain = _LINK.sub(lambda match: match["text"], markdown)
    made, end = [], 0
    for verbatim in _VERBATIM.finditer(plain):
        made += [_linked(plain[end : verbatim.start()], lessons), verbatim[0]]
        end = verbatim.end()
    return "".join([*made, _linked(plain[end:], lessons)])


def known() -> dict[str, str]:
    """The lessons that are there: number to file name."""
    return {number: path.name for number, path in places.notebooks("lessons").items()}


def without(markdown: str) -> str:
    """The text without its links to lessons, for a terminal."""
    return _LINK.sub(lambda match: match["text"], markdown)


def _linked(text: str, lessons: Mapping[str, str]) -> str:
    def one(words: str, number: str) -> str:
        name = lessons.get(number)
        return f"[{words}](../lessons/{name})" if name else words

    def reference(match: re.Match[str]) -> str:
        word, gap, first, rest = match["word"], match["gap"], match["first"], match["rest"]
        if not rest and word in ("lesson", "Lesson"):
            return one(f"{word}{gap}{first}", first)
        others = re.sub(r"(?<=[ \n])\d\d[a-z]?\b(?![^(]*\))", lambda n: one(n[0], n[0]), rest)
        return f"{word}{gap}{one(first, first)}{others}"

    return _REFERENCE.sub(reference, text)
