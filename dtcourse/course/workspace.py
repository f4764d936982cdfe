"""A student's own copies of a lesson and its exercises, in my/ (or where DTCOURSE_MY says),
where no later version of the course touches them.

    my/02-lesson-processes-and-ranks.ipynb      the lesson, without outputs, its answers folded
    my/02-exercises-processes-and-ranks.ipynb   its exercises

The kind comes first, so that the two can be told apart where a file browser cuts long names off. `dtcourse start`
makes both, `dtcourse lab` what is missing of them; neither ever overwrites anything. Copies under older names are found
as well: 02-processes-and-ranks-lesson.ipynb and 02-processes-and-ranks-exercises.ipynb, and, of exercises from before
there were copies of lessons, 02-processes-and-ranks.ipynb.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from dtcourse.course import notebook as nbfile
from dtcourse.course import places
from dtcourse.course.exercises import fingerprint
from dtcourse.course.folding import fold

# What a copy is called after the lesson's name; the folder that it comes from.
KINDS = {"lesson": "lessons", "exercises": "exercises"}


@dataclass(frozen=True)
class Copy:
    """A student's copy of a lesson or of its exercises.

    kind:     "lesson" or "exercises"
    new:      whether it was made just now
    outdated: whether the course's own has changed since it was made
    """

    path: Path
    kind: str
    new: bool
    outdated: bool

    @property
    def name(self) -> str:
        """As a person would write it, from the course's folder: my/02-lesson-processes-and-ranks.ipynb."""
        return f"{self.path.parent.name}/{self.path.name}"


def start(number: str) -> list[Copy]:
    """The copies of a lesson and of its exercises, made where they are missing. Nothing is overwritten.

    A lesson without exercises has one copy; so have exercises without a lesson.

    Raises ValueError if there is neither, or my/ cannot be written.
    """
    return [
        _copy(kind, source, number)
        for kind in KINDS
        if (source := places.notebooks(KINDS[kind]).get(number))
    ]


def place(kind: str, source: Path) -> Path:
    """Where a student's copy of this notebook is, or would be: a copy under an older name stays where it is."""
    folder = places.own()
    number = places.number_of(source.stem)
    name = source.stem.removeprefix(f"{number}-")
    named = folder / f"{number}-{kind}-{name}.ipynb"
    older = [folder / f"{source.stem}-{kind}.ipynb"]
    if kind == "exercises":
        older.append(folder / source.name)
    return next((path for path in (named, *older) if path.exists()), named)


def own() -> dict[str, list[Path]]:
    """The copies in my/ by lesson number, sorted."""
    found: dict[str, list[Path]] = {}
    for path in sorted(places.own().glob(places.NUMBERED)):
        if number := places.number_of(path.name):
            found.setdefault(number, []).append(path)
    return found


def is_lesson(notebook: nbfile.Notebook) -> bool:
    """Whether a notebook is a student's copy of a lesson: its exercises are elsewhere."""
    record = notebook["metadata"].get("dtcourse")
    return isinstance(record, dict) and "lesson" in record


def find(what: str) -> tuple[str, Path]:
    """The lesson's number and the notebook that `check` means: "02" is the copy in my/, else a path.

    Raises ValueError if it is not there.
    """
    path = Path(what)
    if path.suffix == ".ipynb":
        if not path.is_file():
            raise ValueError(f"{what}: no such notebook")
        return number_in(path.name), path
    known = places.notebooks("exercises")
    number = places.numbers([what], known)[0]
    mine = place("exercises", known[number])
    if not mine.is_file():
        raise ValueError(f"my/{mine.name} is not there yet: `dtcourse start {number}` makes it")
    return number, mine


def number_in(name: str) -> str:
    """The lesson's number in the name of a submission: ana-02-processes.ipynb is of lesson 02, 14b_ana.ipynb of 14b.

    A letter that makes no lesson of it is the student's: 02b.ipynb is of lesson 02.

    Raises ValueError if there is none.
    """
    found = re.findall(r"(?<!\d)(\d\d)([a-z](?![a-zA-Z0-9]))?(?!\d)", name)
    numbers = [
        number for digits, letter in found for number in dict.fromkeys((digits + letter, digits))
    ]
    known = set(places.notebooks("exercises")) | set(places.notebooks("solutions"))
    for number in numbers:
        if number in known or not known:
            return number
    raise ValueError(f"{name}: which lesson is it of? Its name needs the number of one, such as 02")


def _copy(kind: str, source: Path, number: str) -> Copy:
    target = place(kind, source)
    notebook = nbfile.read(source)
    now = fingerprint(notebook)
    new = False
    if not target.exists():
        if kind == "lesson":
            notebook = _unread(notebook, now, source, number)
        new = _written(nbfile.dumps(notebook), target)
    outdated = not new and _made_from(target, kind) not in (None, now)
    return Copy(target, kind, new, outdated)


def _written(text: str, target: Path) -> bool:
    """Whether the file was made; False where it is there already, which then stays as it is."""
    try:
        if not target.parent.is_dir():
            target.parent.mkdir(parents=True)
        # O_EXCL: whatever happens between a look and a write, work is not overwritten.
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except OSError as error:
        if os.path.lexists(target):
            return False
        raise ValueError(
            f"your copies cannot be made in {target.parent}: {error.strerror}. DTCOURSE_MY names another folder"
        ) from None
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    return True


def _made_from(path: Path, kind: str) -> str | None:
    """The fingerprint of what a copy was made from; None where it does not say."""
    try:
        record = nbfile.read(path)["metadata"].get("dtcourse")
    except (OSError, nbfile.NotebookError):
        return None
    key = kind.removesuffix("s")
    return record.get(key) if isinstance(record, dict) else None


def _unread(
    notebook: nbfile.Notebook, made_from: str, source: Path, number: str
) -> nbfile.Notebook:
    """A lesson as it is before anybody has run it: answers folded, its links as they are from my/."""
    fold(notebook)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
        elif cell["cell_type"] == "markdown":
            cell["source"] = _LINK.sub(lambda link: _moved(link, source, number), cell["source"])
    notebook["metadata"]["dtcourse"] = {"lesson": made_from}
    return notebook


# [text](target), and the src and href of HTML.
_LINK = re.compile(r"""(?P<opening>\]\(|\b(?:src|href)=["'])(?P<target>[^\s)"'#]+)""")


def _moved(link: re.Match[str], source: Path, number: str) -> str:
    """A link of a lesson as its copy needs it. What leads to no file beside the lesson is left alone."""
    target = source.parent / unquote(link["target"])
    if "://" in link["target"] or link["target"].startswith("/") or not target.exists():
        return link[0]
    exercises = places.notebooks("exercises").get(number)
    if exercises and target.resolve() == exercises.resolve():
        target = place("exercises", exercises)
    return link["opening"] + os.path.relpath(target, places.own()).replace(" ", "%20")
