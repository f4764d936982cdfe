"""dtcourse bench collectives."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dtcourse.cli.say import console, errors, sentences, table
from dtcourse.plural import plural

bench = typer.Typer(no_args_is_help=True, help="Measure this machine.")


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(bench, name="bench")


@bench.callback()
def group() -> None:
    """Measure this machine."""


@bench.command()
@sentences
def collectives(
    collective: Annotated[str, typer.Option(help="Which one, or all.")] = "all_reduce",
    backend: Annotated[
        list[str] | None,
        typer.Option(help="May be given several times; default: PyTorch's own and all of ours."),
    ] = None,
    ranks: Annotated[
        list[int] | None, typer.Option(help="May be given several times; default: 2 and 4.")
    ] = None,
    largest: Annotated[int, typer.Option(help="Bytes of the largest message.")] = 1 << 24,
    repeats: Annotated[int, typer.Option(help="Measurements of each size; the median counts.")] = 5,
    json: Annotated[
        Path | None, typer.Option(help="Write the rows, with machine and date, here.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw bus bandwidth over size into this PNG.")
    ] = None,
) -> None:
    """Latency and bus bandwidth over message sizes, for every backend, algorithm and number of ranks.

    Several nodes: run dtcourse.profiling.collective_bench under torchrun on each (see
    `python -m dtcourse.launch --help`).

    Examples: [bold]dtcourse bench collectives --ranks 4 --backend ring --backend gloo[/bold]
    """
    from dtcourse.collectives.backend import register as backends
    from dtcourse.launch import launch
    from dtcourse.launch.options import known_backend
    from dtcourse.profiling import collective_bench as measure

    names = backend or ["gloo", *backends.choices()]
    for name in names:
        known_backend(name)
    wanted = list(measure.COLLECTIVES) if collective == "all" else [collective]
    if unknown := set(wanted) - set(measure.COLLECTIVES):
        raise ValueError(
            f"there is no benchmark of {unknown.pop()!r}; there are all, {', '.join(measure.COLLECTIVES)}"
        )
    sizes = [s for s in measure.SIZES if s <= largest]
    if not sizes:
        raise ValueError(
            f"the smallest message has {measure.SIZES[0]} bytes; --largest is {largest}"
        )
    rows: list[dict[str, Any]] = []
    for world_size in ranks or [2, 4]:
        for which in wanted:
            for name in names:
                with errors.status(f"{which} on {plural(world_size, 'rank')}, {name}"):
                    run = launch(
                        measure.sweep,
                        world_size,
                        which,
                        sizes,
                        repeats,
                        backend=name,
                        timeout=600.0,
                    )
                rows += [
                    {"collective": which, "backend": name, "ranks": world_size, **row}
                    for row in run[0]
                ]
    _show(rows)
    if json:
        _write(rows, json)
    if plot:
        _draw(rows, plot)


def _show(rows: list[dict[str, Any]]) -> None:
    measured = table(
        "collective", "ranks", "backend", "bytes", "µs", "algorithm MB/s", "bus MB/s", box=None
    )
    for row in rows:
        measured.add_row(
            row["collective"], str(row["ranks"]), row["backend"], f"{row['bytes']:,}", f"{row['seconds'] * 1e6:,.0f}",
            f"{row['algorithm_bandwidth'] / 1e6:,.1f}", f"{row['bus_bandwidth'] / 1e6:,.1f}",
        )  # fmt: skip
    console.print(measured)


def _write(rows: list[dict[str, Any]], path: Path) -> None:
    import datetime
    import json as encoder
    import platform

    import torch

    about = {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {plural(len(_processors()), 'processor')}, {platform.system()}",
        "torch": torch.__version__,
    }
    partial = path.with_name(path.name + ".partial")
    partial.write_text(encoder.dumps({**about, "rows": rows}, indent=1))
    partial.replace(path)


def _processors() -> list[int]:
    import os

    return (
        sorted(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else list(range(os.cpu_count() or 1))
    )


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    from dtcourse import plots

    points: dict[str, tuple[list[float], list[float]]] = {}
    for row in rows:
        label = f"{row['collective']}, {plural(row['ranks'], 'rank')}, {row['backend']}"
        x, y = points.setdefault(label, ([], []))
        x.append(row["bytes"])
        y.append(row["bus_bandwidth"] / 1e6)
    picture = plots.curves(
        points,
        xlabel="message",
        ylabel="bus bandwidth, MB/s",
        log_x=True,
        x_unit="bytes",
        title="Measured on this machine",
    )
    picture.savefig(path)
