"""References to lessons: links where the lesson is there, plain text where it is to come."""

from __future__ import annotations

import re

import pytest

from dtcourse.course import links, places
from dtcourse.course import notebook as nbfile

THERE = {
    "03": "03-collectives.ipynb",
    "06": "06-data-parallel.ipynb",
    "06b": "06b-more.ipynb",
    "16": "16-zero-and-fsdp.ipynb",
}


def to(number: str) -> str:
    return f"(../lessons/{THERE[number]})"


@pytest.mark.parametrize(
    ("text", "linked"),
    [
        ("see lesson 06.", f"see [lesson 06]{to('06')}."),
        ("(lesson 21)", "(lesson 21)"),
        ("Lesson 06 does\nit", f"[Lesson 06]{to('06')} does\nit"),
        ("in lesson\n06, then", f"in [lesson\n06]{to('06')}, then"),
        ("lessons 03 and 06", f"lessons [03]{to('03')} and [06]{to('06')}"),
        ("lessons 16 to 22", f"lessons [16]{to('16')} to 22"),
        ("lessons 21, 03 or 25", f"lessons 21, [03]{to('03')} or 25"),
        (
            "lessons 03 (all-reduce, in 16 steps) and 06 (DDP)",
            f"lessons [03]{to('03')} (all-reduce, in 16 steps) and [06]{to('06')} (DDP)",
        ),
        (
            "lesson 03 (sums), lesson 06 (DDP)",
            f"[lesson 03]{to('03')} (sums), [lesson 06]{to('06')} (DDP)",
        ),
        ("lesson 06b, not 06", f"[lesson 06b]{to('06b')}, not 06"),
        ("lessons 06 and 06b", f"lessons [06]{to('06')} and [06b]{to('06b')}"),
        ("lesson 03b", "lesson 03b"),
        ("`# as in lesson 06`", "`# as in lesson 06`"),
        (
            "```\nlesson 06\n```\nand lesson 06",
            f"```\nlesson 06\n```\nand [lesson 06]{to('06')}",
        ),
        ("[what lesson 06 says](https://there.org)", "[what lesson 06 says](https://there.org)"),
        ("16 lessons, 06 of them; lesson 6", "16 lessons, 06 of them; lesson 6"),
    ],
)
def test_what_becomes_a_link(text, linked):
    assert links.link(text, THERE) == linked
    assert links.link(linked, THERE) == linked  # and stays as it is
    assert links.link(linked, {}) == text  # until the lesson is gone
    assert links.without(linked) == text


def test_a_renamed_lesson_takes_its_links_along():
    renamed = THERE | {"06": "06-ddp.ipynb"}
    assert "06-ddp.ipynb" in links.link(links.link("lesson 06", THERE), renamed)


NOTEBOOKS = [
    pytest.param(path, id=f"{kind}/{path.name}")
    for kind in ("lessons", "solutions", "exercises")
    for path in places.notebooks(kind).values()
]


@pytest.mark.parametrize("path", NOTEBOOKS)
def test_each_reference_is_a_link_and_each_link_leads_somewhere(path):
    """Read here without the mechanism's own rules: every mention of a lesson, and every link."""
    there = places.notebooks("lessons")
    for cell in nbfile.read(path)["cells"]:
        if cell["cell_type"] != "markdown":
            continue
        prose = re.sub(r"```.*?```|`[^`\n]*`", "", cell["source"], flags=re.DOTALL)
        for target in re.findall(r"\]\(([^()\s]*\.ipynb)\)", prose):
            # The same from a student's copy, in the folder beside.
            assert (path.parent / target).is_file() and (places.home() / "my" / target).resolve() \
                == (path.parent / target).resolve(), f"{cell['id']}: {target}"  # fmt: skip
        bare = re.findall(r"(?<!\[)\b[Ll]essons?\s(\d\d[a-z]?)\b", prose)
        bare += re.findall(r"\.ipynb\)(?: \([^()]*\))?,?(?: and| or| to)? (\d\d[a-z]?)\b", prose)
        for number in bare:
            assert number not in there, f"{cell['id']}: lesson {number} is there, and no link"


def test_lessons_link_to_each_other():
    """So that the test above has something to look at."""
    text = "".join(path.read_text(encoding="utf-8") for path in places.notebooks().values())
    assert text.count("](../lessons/") > 40
