"""dtcourse doctor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from dtcourse.cli.say import console, escape, sentences, table

if TYPE_CHECKING:
    from dtcourse.course.doctor import Finding

_MARKS = {"ok": "[green]✓[/green]", "note": "[yellow]![/yellow]", "problem": "[red]✗[/red]"}
_NAMES = len("Jupyter kernel")  # the width of their column: the longest of the usual ones


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command()(doctor)


@sentences
def doctor(
    quick: Annotated[
        bool, typer.Option("--quick", help="Leave out the launch of two ranks.")
    ] = False,
    prove: Annotated[
        bool,
        typer.Option(
            "--prove",
            help="Then do once what the course does: a collective, a checkpoint, a lesson, an exercise. Two minutes.",
        ),
    ] = False,
    cluster: Annotated[
        str | None,
        typer.Option(
            help="Try a cluster instead, by a job on its nodes: slurm, ray, or a cluster.toml."
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="With --cluster: so many nodes. Default: all, at most 16.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print the findings as JSON, for scripts.")
    ] = False,
) -> None:
    """Say what this machine can run and what not, and what to do about it.

    Exit code: 0 where the lessons run here, 1 where something that they need is missing.

    Examples: [bold]dtcourse doctor[/bold], [bold]dtcourse doctor --prove[/bold], [bold]dtcourse doctor --json[/bold],
    [bold]dtcourse doctor --cluster slurm[/bold], [bold]dtcourse doctor --cluster ray[/bold]
    """
    if prove and (quick or cluster is not None):
        raise ValueError(
            "--prove launches ranks on this machine: leave out --quick and --cluster, or ask twice"
        )
    if cluster is None:
        from dtcourse.course.doctor import examine

        looked = examine(launch_ranks=not quick, prove=prove)
    else:
        from dtcourse.course.doctor import cluster as on_cluster

        looked = on_cluster.examine(cluster, nodes)
    findings = []
    for finding in looked:
        findings.append(finding)
        if not json:
            _show(finding)
    bad = [finding for finding in findings if finding.state == "problem"]
    if json:
        import dataclasses
        import json as encoder

        typer.echo(encoder.dumps([dataclasses.asdict(finding) for finding in findings], indent=1))
        raise typer.Exit(1 if bad else 0)

    what = "the lessons run here" if cluster is None else "launches run on the cluster"
    what += ", as one just did" * prove
    notes = sum(finding.state == "note" for finding in findings)
    if bad:
        console.print(
            f"\n[red]{len(bad)} to repair[/red] before {what}: {', '.join(f.name for f in bad)}."
        )
    else:
        console.print(f"\n{what[0].upper()}{what[1:]}." + (f" Notes: {notes}." if notes else ""))
    raise typer.Exit(1 if bad else 0)


def _show(finding: Finding) -> None:
    """A row of the table, as soon as there is something to put in it."""
    row = table("", "", "", show_header=False, box=None, padding=(0, 1))
    row.columns[1].min_width = _NAMES
    found = escape(finding.found)
    if finding.advice:
        found += f"\n[dim]{escape(finding.advice)}[/dim]"
    row.add_row(_MARKS[finding.state], f"[bold]{finding.name}[/bold]", found)
    console.print(row)
