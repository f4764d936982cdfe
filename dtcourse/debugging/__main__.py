"""From a command line: any script's ranks recorded, and what they left read.

torchrun --nproc-per-node 4 -m dtcourse.debugging --record records train.py --epochs 3
torchrun --nproc-per-node 4 -m dtcourse.debugging --record --watch records train.py --epochs 3
python -m dtcourse.debugging records
python -m dtcourse.debugging logs FOLDER --level WARNING --ranks 0 2
python -m dtcourse.debugging gallery
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from pathlib import Path
from typing import NoReturn

from dtcourse.collectives import flight
from dtcourse.debugging.gallery import WATCHES
from dtcourse.debugging.hang import PATIENCE, diagnose_hang, read_records
from dtcourse.debugging.logs import read_logs
from dtcourse.debugging.unasked.watch import seen_by_all, sentences, watched
from dtcourse.launch import rank_log

SEEN = "seen"  # in the folder of the records


def main(argv: list[str] | None = None) -> None:
    """Records a script's rank, or says what the records in a folder show, or shows the logs in one."""
    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ["logs"] and len(given) > 1:
        return show_logs(given[1:])
    if given == ["gallery"]:
        return show_gallery()
    parser = argparse.ArgumentParser(
        prog="python -m dtcourse.debugging", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("folder", help="where the ranks' records are")
    parser.add_argument("--record", action="store_true", help="run a script, and record it there")
    parser.add_argument("--watch", action="store_true", help="and let every tool watch it")
    parser.add_argument("--hang-after", type=float, default=60.0, help="seconds a call may wait")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds that are no hang")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="file.py and its arguments")
    asked = parser.parse_args(given)
    try:
        if not asked.record:
            return show(asked.folder, asked.patience)
        if not asked.script:
            raise ValueError("--record needs the script to run: --record FOLDER file.py ...")
        flight.start(asked.folder, hang_after=asked.hang_after)
        rank_log.from_environment()
    except ValueError as mistake:
        _stop(mistake)
    sys.argv = asked.script
    sys.path[0] = os.path.dirname(os.path.abspath(asked.script[0]))
    with watched(Path(asked.folder).resolve() / SEEN, [*WATCHES] if asked.watch else []):
        runpy.run_path(asked.script[0], run_name="__main__")


def show(folder: str, patience: float) -> None:
    """Prints what the records say of a hang, and what the tools that have watched say."""
    records = read_records(folder)
    print(diagnose_hang(records, patience))
    ranks = records.world_size
    seen = seen_by_all(Path(folder) / SEEN, [*WATCHES], ranks)
    for name, said in sentences(WATCHES, seen, [None] * ranks).items():
        if said:
            print(f"{name}: {said}")


def show_logs(argv: list[str]) -> None:
    """Prints the ranks' logs, merged."""
    parser = argparse.ArgumentParser(prog="python -m dtcourse.debugging logs")
    parser.add_argument("folder", help="where the ranks' logs are")
    parser.add_argument("--level", default="NOTSET", help="and above it")
    parser.add_argument("--ranks", type=int, nargs="+", default=[], help="of these alone")
    asked = parser.parse_args(argv)
    try:
        print(read_logs(asked.folder).of(asked.ranks, asked.level))
    except ValueError as mistake:
        _stop(mistake)


def show_gallery() -> None:
    """Prints the gallery's scripts, by name, with what each does to who runs it."""
    from dtcourse.debugging import gallery

    try:
        print(gallery.table(gallery.scripts()))
    except ValueError as mistake:
        _stop(mistake)


def _stop(mistake: ValueError) -> NoReturn:
    print(f"python -m dtcourse.debugging: error: {mistake}", file=sys.stderr, flush=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
