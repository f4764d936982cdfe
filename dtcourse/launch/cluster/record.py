"""What is known of a job: its record on disk, and the error that says how it ended."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dtcourse.launch.cluster import call as words


class JobFailed(RuntimeError):
    """A job ended, or never began, for a reason that lies with no rank: the cluster's, or its settings'.

    .job     its number
    .folder  where its files are
    """

    def __init__(self, message: str, job: str, folder: str) -> None:
        super().__init__(message)
        self.job, self.folder = job, folder

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.job, self.folder)


@dataclass(frozen=True)
class Record:
    """What job.json says: enough to follow a job from another notebook."""

    job: str
    comment: (
        str  # the job has it at Slurm too: numbers are given again when a cluster is set up anew
    )
    name: str
    submitted: float  # seconds since 1970
    layout: dict[str, Any]
    record: bool
    minutes: int
    source: str  # the cluster.toml it was sent with; empty for the defaults

    def write(self, folder: Path) -> None:
        """Into the job's folder, whole or not at all."""
        partial = folder / f"{words.RECORD}.partial"
        partial.write_text(json.dumps(asdict(self), indent=1))
        partial.replace(folder / words.RECORD)


def read_record(folder: Path) -> Record:
    """Of a job's folder. ValueError where there is none."""
    try:
        return Record(**json.loads((folder / words.RECORD).read_text()))
    except (OSError, ValueError, TypeError):
        raise ValueError(f"{folder} is not the folder of a job") from None
