"""How the command speaks: one console, tables that lose nothing, errors as one sentence with exit code 2."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from rich.console import Console, ConsoleDimensions

from dtcourse.launch import waiting

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")


class Paper(Console):
    """A console that is as wide as what is written, wherever no terminal shows it: in a pipe, a file, a notebook.

    There, rich's own is 80 columns wide, or as wide as the terminal that the pipe ends in: `dtcourse topics | grep`
    then finds no word that stood at the edge. COLUMNS, where it is set, is somebody's wish.

    A sentence may hold a path, to be copied. Its lines end between words; one with a word that is longer than a line
    is left to the terminal to break.
    """

    @property
    def has_edge(self) -> bool:
        """Whether lines have to end somewhere."""
        return bool(os.environ.get("COLUMNS")) or self.file.isatty()

    @property
    def size(self) -> ConsoleDimensions:
        """Columns and lines."""
        size, wished = super().size, os.environ.get("COLUMNS", "")
        if wished.isdigit():  # as it is now: rich keeps what it was when the console was made
            return ConsoleDimensions(int(wished), size.height)
        return size if self.has_edge else ConsoleDimensions(100_000, size.height)

    @size.setter
    def size(self, size: tuple[int, int]) -> None:
        self._width, self._height = size

    def print(self, *objects: Any, **options: Any) -> None:
        """Console.print, with the above."""
        if all(isinstance(each, str) for each in objects):
            longest = max((len(word) for each in objects for word in each.split()), default=0)
            options = {"soft_wrap": longest > self.width, **options}
        super().print(*objects, **options)


console = Paper(highlight=False)
errors = Paper(stderr=True, highlight=False)


def table(*columns: str, **options: Any) -> Table:
    """A table with these headings, whose words are folded where there is no room, and never cut."""
    from rich.table import Table

    made = Table(**options)
    for name in columns:
        made.add_column(name, overflow="fold")
    return made


def first_line(text: str) -> str:
    """The first line of a longer text, for a table; shortened only where the table has an edge."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 160 or not console.has_edge else f"{line[:159]}…"


def sentences(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose ValueErrors, and missing packages, are sentences for the person who typed it."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except ValueError as error:
            errors.print(f"[red]dtcourse:[/red] {escape(str(error))}", soft_wrap=True)
            raise typer.Exit(2) from None
        except ModuleNotFoundError as error:
            extra = "instructor" if error.name == "nbgrader" else "lab"
            errors.print(
                f"[red]dtcourse:[/red] this needs the package {error.name}: pip install 'dtcourse\\[{extra}]', or "
                "`make env`",
                soft_wrap=True,
            )
            raise typer.Exit(2) from None

    return wrapped


def going_through(items: Iterable[T], what: str) -> Iterator[T]:
    """The same items. Where that takes longer than a second, a line on the terminal says what is going on."""
    with waiting.saying(what):
        yield from items


def escape(text: str) -> str:
    """Text with its square brackets kept, not read as markup."""
    from rich.markup import escape as rich_escape

    return rich_escape(text)
