"""The same job in every framework: what `dtcourse framework` lists, runs and compares.

The scripts, their pins and their records are in the folder frameworks/ of the repository. Read here

    catalogue.py     which frameworks there are
    records.py       what a run found, and whether it is still of these files
    environment.py   an environment of its own for each set of pins, made on demand outside the course's
    running.py       one run, alone on a network of its own where the system allows that
"""

from dtcourse.course.frameworks.catalogue import Framework, known, named

__all__ = ["Framework", "known", "named"]
