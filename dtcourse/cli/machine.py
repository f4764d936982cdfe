"""dtcourse doctor."""

from __future__ import annotations

from typing import Annotated

import typer

from dtcourse.cli.say import console, errors, escape, sentences

_MARKS = {"ok": "[green]✓[/green]", "note": "[yellow]![/yellow]", "problem": "[red]✗[/red]"}


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(doctor)


@sentences
def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the launch of two ranks.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON, for scripts.")
    ] = False,
) -> None:
    """Say what this machine can run and what not, and what to do about it.

    Exit code: 0 where the lessons run here, 1 where something that they need is missing.

    Examples: [bold]dtcourse doctor[/bold], [bold]dtcourse doctor --json[/bold]
    """
    from dtcourse.course.doctor import examine

    with errors.status("looking at this machine"):
        findings = examine(launch_ranks=not quick)
    bad = [finding for finding in findings if finding.state == "problem"]
    if json:
        import dataclasses
        import json as encoder

        typer.echo(encoder.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
        raise typer.Exit(1 if bad else 0)

    from rich.table import Table

    table = Table(show_header=False, box=None, padding=(0, 1))
    for finding in findings:
        found = escape(finding.found)
        if finding.advice:
            found += f"\n[dim]{escape(finding.advice)}[/dim]"
        table.add_row(_MARKS[finding.state], f"[bold]{finding.name}[/bold]", found)
    console.print(table)
    notes = sum(finding.state == "note" for finding in findings)
    if bad:
        console.print(
            f"\n[red]{len(bad)} to repair[/red] before the lessons run here: {', '.join(f.name for f in bad)}."
        )
    else:
        console.print("\nThe lessons run here." + (f" Notes: {notes}." if notes else ""))
    raise typer.Exit(1 if bad else 0)
