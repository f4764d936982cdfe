"""dtcourse grade, exercises, notebooks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dtcourse.cli.say import console, errors, escape, first_line, sentences, table

if TYPE_CHECKING:
    from dtcourse.course.grading import Grade


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(grade)
    app.command()(exercises)
    app.command()(notebooks)


@sentences
def grade(
    folder: Annotated[
        Path,
        typer.Argument(help="A folder of submissions: ana-02.ipynb, or ana/02-processes.ipynb."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Where points.csv and feedback/ go. Default: FOLDER/graded")
    ] = None,
    lesson: Annotated[
        str | None, typer.Option(help="The lesson, where file names do not say it.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds for one submission.")] = 300.0,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Run the answers as you, where bubblewrap is missing."),
    ] = False,
) -> None:
    """Grade a folder of submissions: points.csv, and feedback for each student.

    Each submission runs in bubblewrap (Linux; apt install bubblewrap): it sees the system's programs, this Python and
    the course's package, can write to a folder in memory that goes with it, reaches no network, and has limits of time,
    memory, disk and processes. What it tries beyond that (each file of this machine that it asks for and does not get,
    too) is named in its feedback and in points.csv, where the column `tried` counts it.

    It cannot reach the checks that judge it, and its results are compared with the judge's own numbers. What a choice
    costs is measured by processes that never hold the answer. But a function's bytes, messages and seconds are measured
    in processes that run its code: who wants to, and knows how, can fake those. A full score in them from code that you
    do not understand is worth a look.

    Where the judge itself fails (no memory, a rank of its own that dies), nobody's points are lost: the exercise shows
    ? and is in no total, and the note of its line begins with what is to be graded again.

    Without bubblewrap, [bold]--trust[/bold] runs the answers as you, with your files within their reach. Do that with
    code that you have read, or in a container or a virtual machine made for it.

    Example: [bold]dtcourse grade submissions/ --lesson 02[/bold]
    """
    from dtcourse.course import grading, places

    # Not resolved to its end: a link that somebody has put there is refused.
    chosen = out or folder / "graded"
    target = chosen.parent.resolve() / chosen.name
    number = places.padded(lesson) if lesson else lesson
    with errors.status("reading") as status:
        grades = grading.grade(
            folder.resolve(),
            target,
            lesson=number,
            limit=timeout,
            trust=trust,
            on_submission=lambda index, total, one: status.update(
                f"{index} of {total}: {escape(one.file)}"
            ),
            on_changed=_warn,
            on_grade=lambda index, total, one: errors.print(
                f"{index} of {total}: {escape(one.file)}, {_earned(one)}", soft_wrap=True
            ),
        )
    points = table("student", "file", "points", "note")
    for one in grades:
        note = escape(first_line(one.note))
        points.add_row(escape(one.student), escape(one.file), _earned(one), note)
    console.print(points)
    refused = sum(bool(one.refused) for one in grades)
    again = [one.file for one in grades if one.to_be_graded_again]
    if again:
        errors.print(
            f"[red]To be graded again, in part or whole:[/red] {escape(', '.join(again))}. The judge itself failed "
            "there: those points are in no total, and shown as ?.",
            soft_wrap=True,
        )
    console.print(
        f"{len(grades) - refused} graded, {refused} refused. {target / 'points.csv'}, {target / 'feedback'}/",
        soft_wrap=True,
    )


def _earned(grade: Grade) -> str:
    if grade.possible is None:
        return "-"
    again = ", and to be graded again" if grade.to_be_graded_again else ""
    return f"{grade.total} of {grade.possible or '?'}{again}"


def _warn(names: list[str]) -> None:
    errors.print(
        f"[red]The course's own files changed while answers ran: {escape(', '.join(names[:5]))}.[/red] "
        "The grades came from the files as they were before. Look at them (git status) before you go on."
    )


@sentences
def exercises(
    lesson: Annotated[list[str] | None, typer.Argument(help="Lessons; by default all.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 where something is stale.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite exercises that were changed by hand.")
    ] = False,
) -> None:
    """Generate exercises/ from solutions/. Refuses to overwrite an exercise that was changed by hand.

    Examples: [bold]dtcourse exercises[/bold], [bold]dtcourse exercises 02 --check[/bold]
    """
    from dtcourse.course import exercises as making
    from dtcourse.course import places

    solutions = places.notebooks("solutions")
    chosen = places.numbers(lesson, solutions) if lesson else list(solutions)
    bad = False
    for number in chosen:
        try:
            made = making.make(solutions[number], force=force, dry=check)
        except making.Edited as error:
            errors.print(f"[red]refused:[/red] {escape(str(error))}", soft_wrap=True)
            bad = True
            continue
        bad |= check and made.what != "as before"
        console.print(
            f"exercises/{made.path.name}: {'stale' if check and made.what != 'as before' else made.what}"
        )
    for orphan in making.orphans():
        errors.print(f"[red]exercises/{orphan.name} has no solution[/red]")
        bad = True
    raise typer.Exit(1 if bad else 0)


@sentences
def notebooks(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(help="Notebooks or folders; by default all that are committed."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 where something is wrong.")
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", help="Execute lessons and solutions first.")
    ] = False,
) -> None:
    """Bring committed notebooks into their one form, and say what is out of shape.

    Examples: [bold]dtcourse notebooks --check[/bold], [bold]dtcourse notebooks --execute lessons/02-*.ipynb[/bold]
    """
    from dtcourse.course import notebooks as treating

    if check and execute:
        raise ValueError("--check writes nothing, so it cannot go with --execute")
    bad = False
    for path in treating.find(paths or []):
        try:
            with errors.status(f"{path.name}"):
                outcome = treating.treat(path, execute=execute, check=check)
        except (ValueError, RuntimeError) as error:
            console.print(f"[red]{escape(path.name)}[/red]: {escape(str(error))}", soft_wrap=True)
            bad = True
            continue
        took = f", ran {outcome.seconds:.1f} s" if outcome.seconds is not None else ""
        state = "[red]out of shape[/red]" if outcome.faults else "[green]in shape[/green]"
        console.print(
            f"{escape(f'{path.parent.name}/{path.name}')}: {state}{', rewritten' if outcome.changed else ''}{took}"
        )
        for fault in outcome.faults:
            console.print(f"  - {escape(fault)}", soft_wrap=True)
        bad |= bool(outcome.faults)
    raise typer.Exit(1 if bad else 0)
