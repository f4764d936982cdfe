"""From a command line: any script's ranks recorded, and what they left read.

torchrun --nproc-per-node 4 -m dtcourse.debugging --record records train.py --epochs 3
python -m dtcourse.debugging records
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys

from dtcourse.collectives import flight
from dtcourse.debugging.hang import PATIENCE, diagnose_hang


def main(argv: list[str] | None = None) -> None:
    """Records a script's rank, or says what the records in a folder show."""
    parser = argparse.ArgumentParser(
        prog="python -m dtcourse.debugging", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("folder", help="where the ranks' records are")
    parser.add_argument("--record", action="store_true", help="run a script, and record it there")
    parser.add_argument("--hang-after", type=float, default=60.0, help="seconds a call may wait")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds that are no hang")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="file.py and its arguments")
    asked = parser.parse_args(argv)
    try:
        if not asked.record:
            print(diagnose_hang(asked.folder, asked.patience))
            return
        if not asked.script:
            raise ValueError("--record needs the script to run: --record FOLDER file.py ...")
        flight.start(asked.folder, hang_after=asked.hang_after)
    except ValueError as mistake:
        print(f"python -m dtcourse.debugging: error: {mistake}", file=sys.stderr, flush=True)
        sys.exit(2)
    sys.argv = asked.script
    sys.path[0] = os.path.dirname(os.path.abspath(asked.script[0]))
    runpy.run_path(asked.script[0], run_name="__main__")


if __name__ == "__main__":
    main()
