"""After a hang: the records of all ranks, and a sentence on which rank did what instead. In the order in which to read:

records.py      the flight recorder's records of all ranks, read back: cut off, of another run, missing
differences.py  ranks that made different calls where they should have made the same
waits.py        who waits for whom, to the rank that is the reason or round to where it began
words.py        how a call is put in words
diagnose.py     diagnose_hang: all of it
"""

from dtcourse.debugging.hang.diagnose import PATIENCE, Diagnosis, diagnose_hang
from dtcourse.debugging.hang.records import Record, Records, read_records, recorded_in

__all__ = [
    "PATIENCE",
    "Diagnosis",
    "Record",
    "Records",
    "diagnose_hang",
    "read_records",
    "recorded_in",
]
