"""What is wrong with a distributed program, found from what its ranks left. In the order in which to read:

records.py    the flight recorder's records of all ranks, read back: cut off, of another run, missing
differences.py  ranks that made different calls where they should have made the same
waits.py      who waits for whom, to the rank that is the reason or round to where it began
sentences.py  how a call and a rank are put in words
hang.py       diagnose_hang: one sentence on which rank did what instead

    launch(step, 4, timeout=20, env=recorded_in("records"))     # hangs: RankTimeout, and a record of each rank
    print(diagnose_hang("records"))

In a program of your own, under torchrun or not, without a line of it changed:

    torchrun --nproc-per-node 4 -m dtcourse.debugging --record records train.py --epochs 3
    python -m dtcourse.debugging records

or two lines: `from dtcourse.collectives import flight; flight.start("records")`. A rank whose call waits for a minute
has all ranks write their records; so does `kill -USR1` of each.
"""

from dtcourse.debugging.hang import Diagnosis, diagnose_hang
from dtcourse.debugging.records import Record, Records, read_records, recorded_in

__all__ = ["Diagnosis", "Record", "Records", "diagnose_hang", "read_records", "recorded_in"]
