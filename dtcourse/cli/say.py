"""How the command speaks: one console, errors as one sentence with exit code 2."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import typer
from rich.console import Console

console = Console(highlight=False)
errors = Console(stderr=True, highlight=False)


def sentences(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose ValueErrors, and missing packages, are sentences for the person who typed it."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except ValueError as error:
            errors.print(f"[red]dtcourse:[/red] {escape(str(error))}")
            raise typer.Exit(2) from None
        except ModuleNotFoundError as error:
            extra = "instructor" if error.name == "nbgrader" else "lab"
            errors.print(
                f"[red]dtcourse:[/red] this needs the package {error.name}: pip install 'dtcourse\\[{extra}]', or `make env`"
            )
            raise typer.Exit(2) from None

    return wrapped


def escape(text: str) -> str:
    """Text with its square brackets kept, not read as markup."""
    from rich.markup import escape as rich_escape

    return rich_escape(text)
