"""Checkpoints in parts, whatever cut the model: written on any layout, and read on any other.

    save("runs/10000", model, optimizer)         # on every rank, each writing what it keeps
    load("runs/10000", model, optimizer)         # on any number of ranks, cut by other techniques, or by none

In the order in which to read them:

    held.py         what this rank has of the model
    local_chunks.py what a rank keeps of a parameter, as chunks of the whole: so any number of ranks can read it
    files.py        the one door for each open, write, fsync, rename and removal
    checksums.py    a damaged byte is found before anything is loaded
    as_data.py      nothing in it is run
    coverage.py     so is a parameter of which a part is missing, or there twice
    folder.py       written by all ranks together; read all or nothing
    only_data.py    what would not come back as data is refused where it is
    nests.py        a slot of an optimizer's state, to the bottom of its nest
    state.py        the optimizer's part: by parameters' names, in PyTorch's own shape
    tied.py         one value of a parameter with several names, or copies on several ranks
    parts.py        save and load; snapshot, to be written later

A folder that a killed `save` has left looks like a checkpoint until one loads it. dtcourse.fault_tolerance puts a mark
on those that are complete.
"""

from dtcourse.checkpoint.parts import load, save, snapshot

__all__ = ["load", "save", "snapshot"]
