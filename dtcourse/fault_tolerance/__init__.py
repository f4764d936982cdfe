"""Training that survives: checkpoints that are complete or not there, and a resume that is exact.

In the order in which to read them (each write, fsync and rename of theirs passes checkpoint/files.py):

    mark.py           the file that says that a checkpoint is complete, and sums up all others
    folders.py        a folder that appears at once or not at all
    power_cuts.py     what a power cut may leave, from the record of what was done
    checkpoints.py    all ranks write one; the newest complete one is found

It knows no technique: what is written and read is a function's business, such as dtcourse.checkpoint's.
"""

from dtcourse.fault_tolerance.checkpoints import Checkpoints, Found, NotSaved
from dtcourse.fault_tolerance.mark import NotComplete

__all__ = ["Checkpoints", "Found", "NotComplete", "NotSaved"]
