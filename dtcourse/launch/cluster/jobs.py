"""Jobs that were submitted before: which there are, and how to follow one from another notebook."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtcourse.launch import output
from dtcourse.launch.cluster import presence, remote, slurm
from dtcourse.launch.cluster import settings as clusters
from dtcourse.launch.cluster.folder import require_private
from dtcourse.launch.cluster.job import Job
from dtcourse.launch.cluster.record import Record, read_record
from dtcourse.launch.cluster.settings import Settings
from dtcourse.launch.run import Run
from dtcourse.plural import plural


@dataclass(frozen=True)
class Known:
    """One job, with what Slurm says of it now ("GONE" where it has forgotten it)."""

    folder: Path
    record: Record
    state: str


def known(parent: Path | None = None) -> list[Known]:
    """All jobs of the jobs' folder (by default that of cluster.toml), oldest first."""
    return [_asked(folder, record) for folder, record in _records(parent)]


def find(job: str, parent: Path | None = None) -> Known:
    """The newest job of that number: clusters that were set up again count from 1 again."""
    records = _records(parent)
    having = [one for one in records if one[1].job == job]
    if not having:
        numbers = [record.job for _, record in records]
        raise ValueError(
            f"there is no job {job} of dtcourse; there {'are' if numbers else 'is none'} "
            f"{', '.join(numbers[-8:])}".rstrip()
        )
    return _asked(*having[-1])


def _records(parent: Path | None) -> list[tuple[Path, Record]]:
    """The folders of jobs, oldest first, without a question to Slurm."""
    slurm.require()
    parent = (parent or Path(clusters.find("slurm").folder)).expanduser()
    found = []
    for folder in sorted(parent.iterdir()) if parent.is_dir() else []:
        try:
            found.append((folder, read_record(folder)))
        except ValueError:  # not a job's, or one that is just being submitted
            continue
    return found


def _asked(folder: Path, record: Record) -> Known:
    return Known(folder, record, slurm.state_of(record.job, record.comment)[0])


def reattach(job: str, parent: Path | None = None, stream: bool = False) -> Run[Any]:
    """Follows a job that another notebook submitted, and returns what its launch would have returned.

    Its cell may be interrupted: as in a launch, that ends the job.
    """
    one = find(job, parent)
    started = time.monotonic()
    on_line = output.show_line if stream else None
    followed = Job(one.folder, one.record, clusters.find("slurm"), on_line)
    with presence.Presence(one.folder, job, guarded=False):
        run = remote.run_of(followed, stream)
    run.total_seconds = time.monotonic() - started
    return run


class Submitted:
    """A batch job that this notebook has submitted.

    number:    Slurm's
    arguments: what its function is given
    """

    def __init__(self, record: Record, arguments: dict[str, Any], settings: Settings) -> None:
        self.number, self.arguments = record.job, arguments
        self._record, self._parent = record, Path(settings.folder).expanduser()

    def state(self) -> str:
        """What Slurm says of it now."""
        return slurm.state_of(self.number, self._record.comment)[0]

    def result(self, stream: bool = False) -> Run[Any]:
        """Follows it to its end: the Run of its ranks, or the exception that a launch would have raised.

        Interrupted, it ends the job.
        """
        return reattach(self.number, self._parent, stream)

    def cancel(self) -> None:
        """Asks Slurm to end it."""
        slurm.cancel(self.number)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"<job {self.number}: {self._record.name}({given})>"


def clean(parent: Path | None = None, older_than_days: float = 7.0) -> str:
    """Removes the folders of jobs that are over and were submitted so many days ago. Says how many."""
    import shutil

    limit = time.time() - older_than_days * 24 * 3600
    old = [one for one in known(parent) if one.state in slurm.OVER and one.record.submitted < limit]
    for one in old:
        require_private(one.folder)
        shutil.rmtree(one.folder)
    return f"{plural(len(old), 'folder')} removed"
