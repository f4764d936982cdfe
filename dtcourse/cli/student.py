"""dtcourse start, check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from dtcourse.cli.say import console, errors, escape, sentences


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(start)
    app.command()(check)


@sentences
def start(
    lesson: Annotated[str, typer.Argument(help="The lesson whose exercises you want, such as 02.")],
) -> None:
    """Copy a lesson's exercises into my/, to work in. Never overwrites anything.

    Example: [bold]dtcourse start 02[/bold]
    """
    from dtcourse.course import places, workspace

    number = places.numbers([lesson], places.notebooks("exercises"))[0]
    target = workspace.start(number)
    console.print(
        f"my/{target.name} is yours. Open it:    dtcourse lab my/{target.name}", soft_wrap=True
    )
    console.print(f"See how far you are:   dtcourse check {number}")


@sentences
def check(
    notebook: Annotated[
        str, typer.Argument(help="A lesson's number (your copy in my/), or the path of a notebook.")
    ],
    exercise: Annotated[
        list[str] | None, typer.Argument(help="Only these exercises, by name.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for all of it.")] = 300.0,
) -> None:
    """Check your answers; says what is right, and asks the question that leads on where something is not.

    The checks take your functions with what those need; other cells of the notebook are not run.
    Exit code: 0 where all checks pass, 1 where not, 2 where there is nothing to check.

    Examples: [bold]dtcourse check 02[/bold], [bold]dtcourse check 02 ring_shift[/bold], [bold]dtcourse check my/02-processes-and-ranks.ipynb[/bold]
    """
    from dtcourse.course import grading, workspace
    from dtcourse.course import notebook as nbfile

    number, path = workspace.find(notebook)
    wanted = grading.exercises_of(number)
    if exercise:
        names = {one.name for one in wanted}
        if unknown := [name for name in exercise if name not in names]:
            raise ValueError(
                f"lesson {number} has no exercise {unknown[0]}; it has {', '.join(sorted(names))}"
            )
        wanted = [one for one in wanted if one.name in exercise]
    content = nbfile.read(path)
    shown = os.path.relpath(path)
    with errors.status(f"checking {shown}") as status:
        reports = grading.check_notebook(
            content,
            wanted,
            limit=timeout,
            on_check=lambda of, one: status.update(f"{of.name}: {one.title}"),
        )
    for report in reports:
        colour = "green" if report.passed else "yellow"
        head, *rest = str(report).splitlines()
        console.print(f"[bold {colour}]{escape(head)}[/bold {colour}]")
        for line in rest:
            console.print(escape(line), soft_wrap=True)
    good = sum(report.passed for report in reports)
    points = sum(report.points for report in reports)
    possible = sum(report.exercise.points for report in reports)
    console.print(
        f"\n{Path(shown).name}: {good} of {len(reports)} exercises, {points} of {possible} points."
    )
    raise typer.Exit(0 if good == len(reports) else 1)
