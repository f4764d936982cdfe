"""dtcourse framework list, run, compare."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from dtcourse.cli.say import console, errors, escape, sentences, table
from dtcourse.plural import plural

if TYPE_CHECKING:
    from dtcourse.course.frameworks import Framework
    from dtcourse.course.frameworks.records import Record

framework = typer.Typer(no_args_is_help=True, help="The same job in every framework.")


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(framework, name="framework")


@framework.callback()
def group() -> None:
    """The same job in every framework: an MLP on digits by two processes, with plain PyTorch's losses."""


@framework.command("list")
@sentences
def list_all() -> None:
    """Name the frameworks, and say which are ready here and what making the environment of another one takes.

    Example: [bold]dtcourse framework list[/bold]
    """
    from dtcourse.course.frameworks import environment, known, records

    shown = table("name", "framework", "environment", "recorded", box=None)
    for each in known().values():
        record = records.read(records.committed(each))
        state = "the course's own"
        if each.pins:
            state = "ready" if environment.is_ready(each) else f"to make: {_cost(each)}"
        shown.add_row(each.name, each.title, state, record["date"] if record else "not yet")
    console.print(shown)


@framework.command()
@sentences
def run(
    name: Annotated[str, typer.Argument(help="A framework's name, as `list` has it.")],
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Make its environment without asking.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for the run itself, start-up included.")
    ] = 600.0,
) -> None:
    """Do the job in one framework, in an environment of its own, and say what it took.

    The record is kept in build/frameworks/; with DTCOURSE_RECORD=1 in the environment it is the repository's.
    Exit code: 0 where the losses are plain PyTorch's, 1 where not or where it does not install or run here.

    Examples: [bold]dtcourse framework run pytorch-ddp[/bold], [bold]dtcourse framework run accelerate --yes[/bold]
    """
    from dtcourse.course import recorded
    from dtcourse.course.frameworks import named, records, running
    from dtcourse.course.frameworks.environment import NotInstalled, is_ready

    chosen = named(name)
    running.require(chosen)
    try:
        if not is_ready(chosen):
            _make(chosen, yes)
        with errors.status(f"{chosen.title} at work"):
            found = running.run(chosen, timeout)
    except NotInstalled as error:
        _failed(chosen, f"{chosen.title} does not install here: {error}.", error.said)
    except running.NotEqual as error:
        _failed(chosen, f"{chosen.title} did not do the job here: {error}.", error.said)
    file = records.committed(chosen) if os.environ.get(recorded.VARIABLE) else records.own(chosen)
    records.write(found, file)
    _tell([chosen], [found])
    console.print(f"Kept in {os.path.relpath(file)}.")


@framework.command()
@sentences
def compare(
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these; default: all that have a record.")
    ] = None,
) -> None:
    """Show the records side by side: this machine's where it is of the scripts as they are, else the repository's.

    Examples: [bold]dtcourse framework compare[/bold], [bold]dtcourse framework compare pytorch-ddp pytorch-fsdp[/bold]
    """
    from dtcourse.course.frameworks import known, named, records

    chosen = [named(name) for name in names] if names else list(known().values())
    found = [records.latest(each) for each in chosen]
    with_one = [(f, record) for f, record in zip(chosen, found, strict=True) if record]
    if missing := [f.name for f, record in zip(chosen, found, strict=True) if not record]:
        errors.print(f"No record of {', '.join(missing)}: `dtcourse framework run {missing[0]}`.")
    if not with_one:
        raise typer.Exit(1)
    _tell([f for f, _ in with_one], [record for _, record in with_one])


def _make(chosen: Framework, yes: bool) -> None:
    """Its environment, when the user agrees."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from dtcourse.course.frameworks import environment

    environment.find_python()  # before any question
    errors.print(
        f"{chosen.title} gets an environment of its own, in {environment.place(chosen)}: {_cost(chosen)}, once. The "
        "course's own stays as it is. Ctrl-C is safe: what was begun is removed by the next call.",
        soft_wrap=True,
    )
    if not yes:
        if not sys.stdin.isatty():
            raise ValueError("nobody is here to agree to that: give --yes")
        typer.confirm("Make it?", abort=True, err=True)
    words = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f} of about "
        "{task.total:,.0f} MB"), TimeElapsedColumn()  # fmt: skip
    with Progress(*words, console=errors, transient=True) as bar:
        task = bar.add_task("beginning", total=environment.takes(chosen))
        environment.make(
            chosen, lambda step, done: bar.update(task, description=step, completed=done)
        )


def _cost(chosen: Framework) -> str:
    from dtcourse.course.frameworks import environment

    size = environment.takes(chosen)
    return f"{size:,.0f} MB and about {plural(chosen.minutes, 'minute')}"


def _failed(chosen: Framework, what: str, said: str) -> None:
    """Say what failed, show what was recorded elsewhere, and end."""
    from dtcourse.course.frameworks import records

    errors.print(escape(said), soft_wrap=True)
    errors.print(f"[red]dtcourse:[/red] {escape(what)} Its own words are above.", soft_wrap=True)
    if record := records.read(records.committed(chosen)):
        console.print(f"What it did on {record['date']} on {record['machine']}:")
        _tell([chosen], [record])
    else:
        console.print("There is no record of it either.")
    raise typer.Exit(1)


def _tell(chosen: Iterable[Framework], found: Iterable[Record]) -> None:
    from dtcourse.course.frameworks import records

    shown = table(
        "framework", "losses", "difference", "lines", "bytes per step", "ms per step", "seconds", "versions", "date",
        box=None,
    )  # fmt: skip
    notes = []
    for each, record in zip(chosen, found, strict=True):
        sent, step = record["step_bytes"], record["step_seconds"]
        versions = ", ".join(f"{n} {v}" for n, v in record["versions"].items() if n != "python")
        shown.add_row(
            each.name,
            f"{record['losses'][0]:.6f} to {record['losses'][-1]:.6f}",
            f"{record['largest_difference']:.1e}",
            str(record["lines"]),
            "not counted" if sent is None else f"{sent:,.0f}",
            "" if step is None else f"{step * 1e3:,.1f}",
            f"{record['seconds']:,.0f}",
            versions,
            record["date"],
        )
        if each.wire and sent is None:
            notes.append(f"{each.name}: no bytes are counted, since {each.wire}.")
        if each.note:
            notes.append(f"{each.name}: {each.note}.")
        if changed := records.stale(record, each):
            notes.append(f"{each.name}: the {changed} changed after this record; run it again.")
    console.print(shown)
    for note in notes:
        console.print(note, soft_wrap=True)
