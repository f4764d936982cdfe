"""dtcourse list, lab, run, topics."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dtcourse.cli.say import console, errors, escape, sentences


class PairsCommand(TyperCommand):
    """Lets `-p NAME VALUE` stand beside `-p NAME=VALUE`, which is all that typer reads."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join the two words after -p, unless the first has its value already."""
        joined, rest = [], list(args)
        while rest:
            word = rest.pop(0)
            joined.append(word)
            if word in ("-p", "--parameter") and rest:
                name = rest.pop(0)
                if "=" not in name and rest:
                    name = f"{name}={rest.pop(0)}"
                joined.append(name)
        return super().parse_args(ctx, joined)


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("list")(list_lessons)
    app.command()(lab)
    app.command(cls=PairsCommand)(run)
    app.command()(topics)


@sentences
def list_lessons() -> None:
    """List the lessons: minutes, seconds on two cores, what each needs, and its exercises.

    Example: [bold]dtcourse list[/bold]
    """
    from rich.table import Table

    from dtcourse.course import notebook as nbfile
    from dtcourse.course import places
    from dtcourse.course.topics import syllabus

    lessons, mine = places.notebooks("lessons"), places.notebooks("my")
    exercises = places.notebooks("exercises")
    table = Table(title="Lessons", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("lesson")
    table.add_column("min", justify="right", no_wrap=True)
    table.add_column("runs in", justify="right", no_wrap=True)
    table.add_column("needs")
    table.add_column("exercises")
    for number, path in lessons.items():
        try:
            notebook = nbfile.read(path)
        except nbfile.NotebookError as error:
            table.add_row(number, f"[red]{escape(str(error))}[/red]")
            continue
        card = nbfile.card(notebook)
        seconds = notebook["metadata"].get("dtcourse", {}).get("seconds")
        state = "started" if number in mine else "yes" if number in exercises else ""
        table.add_row(
            number,
            escape(card.title or path.stem),
            str(card.minutes or ""),
            f"{seconds:.0f} s" if isinstance(seconds, (int, float)) else "",
            escape(card.needs),
            state,
        )
    console.print(table)
    coming = len(syllabus()) - len(lessons)
    if coming > 0:
        console.print(
            f"{coming} more lessons of the syllabus are to come. `dtcourse lab 01` opens the first."
        )


@sentences
def lab(
    lesson: Annotated[
        str | None, typer.Argument(help="A lesson's number, such as 02; none opens the first.")
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed on to jupyter lab, after --.")
    ] = None,
) -> None:
    """Open JupyterLab on a lesson, or on your own copy of an exercise.

    Examples: [bold]dtcourse lab[/bold], [bold]dtcourse lab 02[/bold], [bold]dtcourse lab my/02-processes-and-ranks.ipynb[/bold]
    """
    import os
    import subprocess
    import sys

    from dtcourse.course import places

    home = places.home()
    if lesson and Path(lesson).suffix == ".ipynb":
        path = Path(lesson).resolve()
        if not path.is_file():
            raise ValueError(f"{lesson}: no such notebook")
    else:
        lessons = places.notebooks("lessons")
        if not lessons:
            raise ValueError(f"there are no lessons in {home / 'lessons'}")
        path = lessons[places.numbers([lesson], lessons)[0] if lesson else min(lessons)]
    command = [sys.executable, "-m", "jupyterlab", "--notebook-dir", str(home)]
    command.append("--LabApp.news_url=None")  # no question about news over the first lesson
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    try:
        code = subprocess.call([*command, *(arguments or []), str(path)], cwd=home)
    except KeyboardInterrupt:
        code = 0
    raise typer.Exit(code)


@sentences
def run(
    lessons: Annotated[list[str], typer.Argument(help="Numbers, ranges or names: 03 05-07 all.")],
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            "--parameter",
            metavar="NAME VALUE",
            help="Set a parameter of every lesson; may be repeated.",
        ),
    ] = None,
    kind: Annotated[str, typer.Option(help="lessons, solutions or my.")] = "lessons",
    out: Annotated[
        Path | None, typer.Option(help="Where executed copies go. Default: executed/")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one cell may take.")] = 1200.0,
) -> None:
    """Run lessons from top to bottom, with other parameters if you like; goes on after a failure.

    Examples: [bold]dtcourse run 03 05-07 -p WORLD_SIZE 3[/bold], [bold]dtcourse run all --kind solutions[/bold]
    """
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from dtcourse.course import notebook as nbfile
    from dtcourse.course import places

    if kind not in ("lessons", "solutions", "my"):
        raise ValueError(f"--kind is lessons, solutions or my; got {kind}")
    known = places.notebooks(kind)
    chosen = places.numbers(lessons, known)
    from dtcourse.course import execute

    given = _parameters(parameter or [])
    # What can be wrong with the request is said before an hour of running, not after it.
    for number in chosen:
        if given:
            execute.check_parameters(
                execute.parameters(nbfile.read(known[number])), given, known[number].stem
            )
    folder = (out or places.home() / "executed").resolve()

    table = Table("lesson", "result", "seconds", "what happened")
    failed = 0
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("cell {task.completed:.0f}/{task.total:.0f}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=errors, transient=True) as progress:
        for number in chosen:
            path = known[number]
            task = progress.add_task(path.stem, total=1)
            start = time.perf_counter()
            try:
                outcome = execute.run(
                    path,
                    folder / path.name,
                    given,
                    timeout=timeout,
                    on_cell=partial(_advance, progress, task),
                )
                seconds, error = outcome.seconds, outcome.error
            except ValueError as problem:
                seconds, error = time.perf_counter() - start, str(problem)
            progress.remove_task(task)
            failed += error is not None
            said = escape(error.strip().splitlines()[0][:160]) if error else ""
            table.add_row(
                path.stem,
                "[red]failed[/red]" if error else "[green]passed[/green]",
                f"{seconds:.1f}",
                said,
            )
    console.print(table)
    console.print(
        f"{len(chosen) - failed} passed, {failed} failed. Executed copies: {folder}", soft_wrap=True
    )
    raise typer.Exit(1 if failed else 0)


def _parameters(words: list[str]) -> dict[str, Any]:
    from dtcourse.course.execute import value

    given = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier():
            raise ValueError(f"-p {word}: a parameter is a name and a value, as in -p WORLD_SIZE 3")
        given[name] = value(text)
    return given


@sentences
def topics(
    find: Annotated[
        str | None, typer.Argument(help="Only topics with this in their id or description.")
    ] = None,
    missing: Annotated[
        bool, typer.Option("--missing", help="Only topics that no lesson teaches yet.")
    ] = False,
) -> None:
    """Where each topic is taught: lesson, section, and the code that it shows.

    Examples: [bold]dtcourse topics ring[/bold], [bold]dtcourse topics --missing[/bold]
    """
    from rich.table import Table

    from dtcourse.course.topics import index

    entries = index()
    table = Table("topic", "lesson and section", "code")
    shown = 0
    for entry in entries.values():
        if find and find.lower() not in f"{entry.topic} {entry.description}".lower():
            continue
        if missing and entry.taught:
            continue
        where = "\n".join(f"{lesson}: {section}" for lesson, section in entry.sections)
        code = "\n".join(name.removeprefix("dtcourse.") for name in entry.code[:6])
        table.add_row(entry.topic, escape(where) or "[dim]not yet[/dim]", escape(code))
        shown += 1
    if not shown:
        if find:
            raise ValueError(f"no topic has {find!r} in it")
        console.print("Every topic of the syllabus is taught.")
        return
    console.print(table)
    taught = sum(entry.taught for entry in entries.values())
    console.print(
        f"{taught} of {len(entries)} topics are taught; {len(entries) - taught} are missing."
    )


def _advance(progress: Any, task: Any, done: int, total: int) -> None:
    progress.update(task, completed=done, total=total)
