"""dtcourse start, check."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dtcourse.cli.say import console, errors, escape, sentences
from dtcourse.plural import plural

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dtcourse.course.judging import Exercise
    from dtcourse.course.workspace import Copy


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(start)
    app.command()(check)


@sentences
def start(
    lesson: Annotated[str, typer.Argument(help="The lesson you want to begin, such as 02.")],
) -> None:
    """Copy a lesson (no outputs, folded answers) and its exercises into my/, to work in. Never overwrites anything.

    Example: [bold]dtcourse start 02[/bold]
    """
    from dtcourse.course import places, workspace

    known = {**places.notebooks("exercises"), **places.notebooks("lessons")}
    number = places.numbers([lesson], known)[0]
    copies = workspace.start(number)
    tell(copies, number, also_old=True)
    if not any(copy.new for copy in copies):
        raise ValueError(
            f"there is nothing to make: open them with `dtcourse lab {number}`, or rename them to start afresh"
        )
    if len(copies) == 1 and copies[0].kind == "lesson":
        console.print(f"Lesson {number} has no exercises.")
    console.print(f"Open them:             dtcourse lab {number}")
    if copies[-1].kind == "exercises":
        console.print(f"See how far you are:   dtcourse check {number}")


def tell(copies: list[Copy], number: str, *, also_old: bool = False) -> None:
    """Say which copies are new, and which the course has changed since; with `also_old`, those that were there."""
    whats = {
        "lesson": "the lesson, without outputs, its answers folded",
        "exercises": "its exercises",
    }
    for copy in copies:
        if copy.new:
            console.print(f"{copy.name} is yours: {whats[copy.kind]}.", soft_wrap=True)
        elif also_old:
            console.print(f"{copy.name} is there already, and stays as it is.", soft_wrap=True)
        if copy.outdated:
            console.print(
                f"The course's {copy.kind} {number} changed after you began {copy.name}. It is yours, and stays as "
                f"it is: for the new version, rename it, then `dtcourse start {number}`.",
                soft_wrap=True,
            )


def _wanted(number: str, names: list[str]) -> Iterator[Exercise]:
    """The exercises of a lesson, or those of these names."""
    from dtcourse.course import grading

    found = {one.name: one for one in grading.exercises_of(number)}
    if unknown := [name for name in names if name not in found]:
        raise ValueError(
            f"lesson {number} has no exercise {unknown[0]}; it has {', '.join(sorted(found))}"
        )
    yield from (one for name, one in found.items() if not names or name in names)


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

    The checks take your functions with what makes the names that those use: definitions, imports, assignments, append
    and the like. Other statements of the notebook are not run: no call of a function that sets a global name. Where
    bubblewrap is installed (Linux) they run in it; else as you, which is right for your own answers, and for a
    stranger's is not.
    Exit code: 0 where all checks pass, 1 where not, 2 where there is nothing to check or something could not be judged.

    Examples: [bold]dtcourse check 02[/bold], [bold]dtcourse check 02 ring_shift[/bold],
    [bold]dtcourse check handed-in/ana-02.ipynb[/bold]
    """
    from dtcourse.course import grading, places, workspace
    from dtcourse.course import notebook as nbfile
    from dtcourse.course.judging.bubblewrap import why_not

    number, path = workspace.find(notebook)
    content = nbfile.read(path)
    shown = os.path.relpath(path)
    if path.resolve().parent != places.own() and (reason := why_not()):
        errors.print(
            f"[dim]The answers run as you, with your files in reach: {escape(reason)}.[/dim]"
        )
    with errors.status(f"checking {shown}") as status:
        reports = grading.check_notebook(
            content,
            _wanted(number, exercise or []),
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
    possible = sum(report.possible for report in reports)
    unjudged = [report.exercise.name for report in reports if report.unjudged]
    judged = len(reports) - len(unjudged)
    console.print(
        f"\n{Path(shown).name}: {good} of {plural(judged, 'exercise')}, {points} of {plural(possible, 'point')}."
    )
    if unjudged:
        console.print(
            f"Not judged, through no fault of yours: {', '.join(unjudged)}. Check again.",
            soft_wrap=True,
        )
        raise typer.Exit(2)
    raise typer.Exit(0 if good == len(reports) else 1)
