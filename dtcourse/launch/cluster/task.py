"""What Slurm's task of one node calls: submitit pickles it, and unpickles it on the node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtcourse.launch.cluster import agent, serving, station


class Agent:
    """What Slurm's task of one node calls. Called again with the same folder where a job was requeued."""

    def __init__(self, folder: str, serves: bool = False) -> None:
        self.folder, self.serves = folder, serves

    def __call__(self) -> None:
        (serving.serve if self.serves else agent.run)(Path(self.folder), station.of_slurm())

    def checkpoint(self) -> Any:
        """What to call when the job was ended before its time and starts again: the same (submitit's protocol)."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
