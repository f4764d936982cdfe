"""dtcourse list, lab, run, topics."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from dtcourse.cli.say import (
    console,
    errors,
    escape,
    first_line,
    going_through,
    sentences,
    table,
)
from dtcourse.launch import waiting
from dtcourse.plural import plural


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
    from dtcourse.course import notebook as nbfile
    from dtcourse.course import places, workspace
    from dtcourse.course.topics import syllabus

    lessons, mine = places.notebooks("lessons"), workspace.own()
    exercises = places.notebooks("exercises")
    listed = table(
        "", "lesson", "min", "runs in", "needs", "exercises", title="Lessons", title_justify="left"
    )
    for column in listed.columns[:1] + listed.columns[2:4]:
        column.no_wrap = True
    for column in listed.columns[2:4]:
        column.justify = "right"
    for number, path in going_through(lessons.items(), "reading the lessons"):
        try:
            notebook = nbfile.read(path)
        except nbfile.NotebookError as error:
            listed.add_row(number, f"[red]{escape(str(error))}[/red]")
            continue
        card = nbfile.card(notebook)
        seconds = notebook["metadata"].get("dtcourse", {}).get("seconds")
        state = "started" if number in mine else "yes" if number in exercises else ""
        listed.add_row(
            number,
            escape(card.title or path.stem),
            str(card.minutes or ""),
            f"{seconds:.0f} s" if isinstance(seconds, (int, float)) else "",
            escape(card.needs),
            state,
        )
    console.print(listed)
    coming = len(syllabus()) - len(lessons)
    if coming > 0:
        console.print(
            f"Still to come: {plural(coming, 'lesson')} of the syllabus. `dtcourse lab 01` opens the first."
        )


@sentences
def lab(
    lesson: Annotated[
        str | None,
        typer.Argument(help="A lesson's number, such as 02, or a notebook; none opens the first."),
    ] = None,
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed on to jupyter lab, after --.")
    ] = None,
    instructor: Annotated[
        bool, typer.Option("--instructor", help="With nbgrader's menus and tools.")
    ] = False,
) -> None:
    """Open JupyterLab on your own copy of a lesson, in my/, or on any notebook. Makes the copy where it is missing.

    Examples: [bold]dtcourse lab[/bold], [bold]dtcourse lab 02[/bold], [bold]dtcourse lab
    lessons/02-processes-and-ranks.ipynb[/bold]
    """
    import os
    import sys

    from dtcourse.cli.student import tell
    from dtcourse.course import lab as jupyterlab
    from dtcourse.course import places, workspace

    home = places.home()
    passed_on = arguments or []
    if lesson and lesson.startswith("-"):  # `dtcourse lab -- --no-browser`
        passed_on = [lesson, *passed_on]
        lesson = None
    if lesson and Path(lesson).suffix == ".ipynb":
        path = Path(lesson).resolve()
        if not path.is_file():
            raise ValueError(f"{lesson}: no such notebook")
    else:
        lessons = places.notebooks("lessons")
        if not lessons:
            raise ValueError(f"there are no lessons in {home / 'lessons'}")
        number = places.numbers([lesson], lessons)[0] if lesson else min(lessons)
        copies = workspace.start(number)
        tell(copies, number)
        path = copies[0].path
    home = home if path.is_relative_to(home) else path.parent  # what JupyterLab shows
    command = jupyterlab.command(path, home, passed_on)
    errors.print(f"starting JupyterLab on {path.name}")  # which says nothing for seconds
    os.chdir(home)
    sys.stdout.flush()
    # JupyterLab takes the place of this process, so that Ctrl-C is its own: it asks, and ends its kernels.
    os.execve(command[0], command, jupyterlab.environment(instructor=instructor))


@sentences
def run(
    lessons: Annotated[
        list[str], typer.Argument(help="Numbers, ranges or names: 03 05-07 all; or notebooks.")
    ],
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
    cluster: Annotated[
        str | None,
        typer.Option(
            help="slurm, ray, or a cluster.toml: run the launches that are not emulated as its jobs. The same as -p "
            "CLUSTER slurm."
        ),
    ] = None,
) -> None:
    """Run lessons from top to bottom, with other parameters if you like; goes on after a failure.

    Examples: [bold]dtcourse run 03 05-07 -p WORLD_SIZE 3[/bold], [bold]dtcourse run all --kind solutions[/bold]
    """
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from dtcourse.course import notebook as nbfile
    from dtcourse.course import places, workspace

    if kind not in ("lessons", "solutions", "my"):
        raise ValueError(f"--kind is lessons, solutions or my; got {kind}")
    known = {number: [path] for number, path in places.notebooks(kind).items()}
    if kind == "my":
        known = workspace.own()
    chosen: list[Path] = []
    for item in lessons:
        if item.endswith(".ipynb") and Path(item).is_file():
            chosen.append(Path(item).resolve())
        else:
            chosen += [path for number in places.numbers([item], known) for path in known[number]]
    chosen = list(dict.fromkeys(chosen))
    from dtcourse.course import execute

    given = _parameters(parameter or [])
    if cluster is not None:
        from dtcourse.launch.cluster import remote

        remote.find(cluster)  # said before anything runs
        given["CLUSTER"] = str(Path(cluster).resolve()) if cluster.endswith(".toml") else cluster
    # What can be wrong with the request is said before an hour of running, not after it.
    for path in chosen:
        if given:
            execute.check_parameters(execute.parameters(nbfile.read(path)), given, path.stem)
    folder = (out or places.home() / "executed").resolve()

    results = table("lesson", "result", "seconds", "what happened")
    failed = 0
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("cell {task.completed:.0f}/{task.total:.0f}"),
    )
    with Progress(*columns, TimeElapsedColumn(), console=errors, transient=True) as progress:
        for path in chosen:
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
            said = escape(first_line(error)) if error else ""
            results.add_row(
                path.stem,
                "[red]failed[/red]" if error else "[green]passed[/green]",
                f"{seconds:.1f}",
                said,
            )
    console.print(results)
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
    from dtcourse.course.topics import index

    with waiting.saying("reading the lessons"):
        entries = index()
    found = table("topic", "lesson and section", "code")
    shown = 0
    for entry in entries.values():
        if find and find.lower() not in f"{entry.topic} {entry.description}".lower():
            continue
        if missing and entry.taught:
            continue
        where = "\n".join(f"{lesson}: {section}" for lesson, section in entry.sections)
        names = [name.removeprefix("dtcourse.") for name in entry.code]
        if len(names) > 7:
            names[6:] = [f"and {len(names) - 6} more"]
        code = "\n".join(names)
        found.add_row(entry.topic, escape(where) or "[dim]not yet[/dim]", escape(code))
        shown += 1
    if not shown:
        if find:
            raise ValueError(f"no topic has {find!r} in it")
        console.print("Every topic of the syllabus is taught.")
        return
    console.print(found)
    taught = sum(entry.taught for entry in entries.values())
    console.print(
        f"{taught} of {len(entries)} topics are taught; {len(entries) - taught} are missing."
    )


def _advance(progress: Any, task: Any, done: int, total: int) -> None:
    progress.update(task, completed=done, total=total)
