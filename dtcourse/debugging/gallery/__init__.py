"""The gallery's machinery: gallery/*.py hold one real mistake each, and this runs them, repaired or not, and examines.

script.py   what a script says of itself, and its repaired twin
running.py  its ranks, with every tool watching
examine.py  all tools at once, unasked
table.py    the list, and what a script does when it is run

    python gallery/ring_whole_tensor.py             # fails as in life
    python gallery/ring_whole_tensor.py --tools     # what each tool says of it
    python gallery/ring_whole_tensor.py --repaired  # the twin
    python -m dtcourse.debugging gallery            # all of them, by symptom
"""

from dtcourse.debugging.gallery.examine import COMPARISONS, TOOLS, WATCHES, Examined, examine
from dtcourse.debugging.gallery.script import KINDS, Script, read
from dtcourse.debugging.gallery.table import folder, main, scripts, table

__all__ = [
    "COMPARISONS",
    "KINDS",
    "TOOLS",
    "WATCHES",
    "Examined",
    "Script",
    "examine",
    "folder",
    "main",
    "read",
    "scripts",
    "table",
]
