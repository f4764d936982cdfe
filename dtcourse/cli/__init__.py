"""The command `dtcourse`: for students, instructors and CI. `dtcourse --help` lists what it does.

    lessons.py      list, lab, run, topics
    student.py      start, check
    instructor.py   grade, exercises, notebooks
    machine.py      doctor
    bench.py        bench collectives
    cluster.py      cluster, submit, jobs, kubernetes
    frameworks.py   framework list, run, compare

Exit codes: 0 all is well; 1 something that was tried failed; 2 it could not be tried as asked.
Nothing heavy is imported before a command needs it: `dtcourse list` answers in a fraction of a second.
"""

from __future__ import annotations

import typer

from dtcourse.cli import bench, cluster, frameworks, instructor, lessons, machine, student

app = typer.Typer(
    name="dtcourse",
    help="Distributed deep-learning training, taught by running it.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for part in (machine, lessons, student, instructor, bench, cluster, frameworks):
    part.add_to(app)


def _version(asked: bool) -> None:
    if asked:
        import dtcourse

        typer.echo(f"dtcourse {dtcourse.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Say which version this is."
    ),
) -> None:
    """Distributed deep-learning training, taught by running it.

    Start with [bold]dtcourse doctor[/bold] and [bold]dtcourse lab[/bold].
    """


__all__ = ["app"]
