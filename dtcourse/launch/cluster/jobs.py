"""Jobs that were submitted before: which there are, and how to follow one from another notebook."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtcourse.launch import output
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster import presence, remote, slurm
from dtcourse.launch.cluster import settings as clusters
from dtcourse.launch.cluster.folder import require_private
from dtcourse.launch.cluster.job import Job
from dtcourse.launch.cluster.record import Record, read_record
from dtcourse.launch.cluster.settings import Settings
from dtcourse.launch.run import Run
from dtcourse.plural import plural

_NAME = re.compile(r"\d{8}-\d{6}-.+-[0-9a-f]{8}")  # of a job's folder, as folder.create makes it


@dataclass(frozen=True)
class Known:
    """One job, with what Slurm says of it now ("GONE" where it has forgotten it)."""

    folder: Path
    record: Record
    state: str


def known(parent: Path | None = None) -> list[Known]:
    """All jobs of the jobs' folder, oldest first.

    parent: None for those of cluster.toml and of every other file that jobs were sent with
    """
    return [_asked(folder, record) for folder, record in _records(parent)]


def of_all_users() -> list[tuple[str, ...]]:
    """The jobs of dtcourse's that wait or run, whosever they are; those that wait first.

    (user, number, function, nodes, state, time, reason). A cluster may show its users their own jobs only (Slurm's
    PrivateData).
    """
    slurm.require()
    ours = [job for job in slurm.waiting_or_running() if _NAME.fullmatch(job[-1])]
    return [job[:-1] for job in sorted(ours, key=lambda job: (job[4] != "PENDING", job[5], job[0]))]


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


def tasks(array: str, parent: Path | None = None) -> list[Known]:
    """The jobs of the newest array of that number; none where there is no such array."""
    found = [one for one in _records(parent) if one[1].job.split("_")[0] == array]
    found = [one for one in found if "_" in one[1].job and one[1].comment == found[-1][1].comment]
    return [_asked(*one) for one in found]


def _records(parent: Path | None) -> list[tuple[Path, Record]]:
    """The folders of jobs, oldest first, without a question to Slurm."""
    slurm.require()
    found = []
    for folder in _folders(parent):
        try:
            found.append((folder, read_record(folder)))
        except ValueError:  # not a job's, or one that is just being submitted
            continue
    return found


def _folders(parent: Path | None) -> list[Path]:
    """What lies in the jobs' folder, or in all that are known; the oldest first, as their names say."""
    parents = [parent] if parent else [Path(settings.folder) for settings in _clusters()]
    known = dict.fromkeys(folder.expanduser().resolve() for folder in parents)
    inside = [path for folder in known if folder.is_dir() for path in folder.iterdir()]
    # A scratch folder may be everybody's: what others have put there is neither looked into nor listed.
    return sorted(filter(_is_own, inside), key=lambda path: path.name)


def _is_own(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:  # removed meanwhile
        return False


def _clusters() -> list[clusters.Settings]:
    """The settings of "slurm", those of other files that jobs were sent with, and "ray"'s.

    The folder of Ray's has what a killed notebook's launch has left; where cluster.toml is Slurm's, the usual one.
    """
    sent = map(clusters.of_file, clusters.remembered())
    return [clusters.find("slurm"), *sent, clusters.find("ray")]


def _is_slurm_here() -> bool:
    with suppress(ImportError, RuntimeError):
        slurm.require()
        return True
    return False


def _asked(folder: Path, record: Record) -> Known:
    return Known(folder, record, slurm.state_of(record.job, record.comment)[0])


def reattach(job: str, parent: Path | None = None, stream: bool = False) -> Run[Any]:
    """Follows a job that another notebook submitted, and returns what its launch would have returned.

    Its cell may be interrupted: as in a launch, that ends the job.
    """
    one = find(job, parent)
    started = time.monotonic()
    on_line = output.show_line if stream else None
    followed = Job(one.folder, one.record, clusters.of_file(one.record.source), on_line)
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
    """Removes the folders of jobs that are over, or were never taken, and are so many days old. Says how many.

    Where there is no Slurm to ask, those stay that it knows of: what launches on Ray have left goes.
    """
    limit = time.time() - older_than_days * 24 * 3600
    jobs = known(parent) if _is_slurm_here() else []
    old = [one for one in jobs if one.state in slurm.OVER and one.record.submitted < limit]
    folders = [one.folder for one in old] + [
        folder
        for folder in _folders(parent)
        if _NAME.fullmatch(folder.name)
        and not (folder / words.RECORD).exists()
        and folder.lstat().st_mtime < limit
    ]
    for folder in folders:
        require_private(folder)
        shutil.rmtree(folder)
    return f"{plural(len(folders), 'folder')} removed"
