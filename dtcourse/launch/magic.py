"""%dtcourse release: gives back, from a notebook, the nodes of a cluster that it holds."""

from __future__ import annotations

import sys
from typing import Any


def register() -> None:
    """For a notebook, once: from now on its cells know %dtcourse."""
    shell: Any = sys.modules["IPython"].get_ipython()
    shell.register_magic_function(run, "line", "dtcourse")


def run(line: str) -> None:
    """What %dtcourse does. ValueError for a word that it does not know."""
    if line.split() != ["release"]:
        raise ValueError(
            f"%dtcourse knows one word, release, which gives back the nodes that launches hold; got {line!r}. "
            "In a terminal, and after ! in a cell, `dtcourse --help` lists the commands"
        )
    from dtcourse.launch import cluster

    print(cluster.release())
