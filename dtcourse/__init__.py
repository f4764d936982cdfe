"""dtcourse: distributed deep-learning training, taught by running it.

    from dtcourse import launch
    launch(step, 4)              # step() on four ranks, from a notebook cell

`ls dtcourse/` is the syllabus: one package a technique. Importing dtcourse loads neither torch nor matplotlib.
"""

# Bound eagerly, so that `dtcourse.launch` is the function. The package of the same name stays importable
# (`from dtcourse.launch import RankFailure`), and it loads torch only when something is launched.
from dtcourse.launch import launch

__version__ = "0.1.0"
__all__ = ["__version__", "launch"]
