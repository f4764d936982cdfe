"""The transport where all nodes see the job's folder: agents write logs into it, and they are read here."""

from __future__ import annotations

import tempfile
from pathlib import Path

from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster.folder import Reader, cannot_be_written, require_private


class SharedFolder:
    """The folder of a job, or of a call, with a log for each of its agents."""

    def __init__(self, folder: Path, agents: int) -> None:
        require_private(folder)
        self.folder = folder
        self.logs = [Reader(folder / words.log_name(number)) for number in range(agents)]

    def advance(self) -> None:
        """The nodes write by themselves."""

    def wrote(self) -> str:
        """The last lines that the nodes wrote outside any rank."""
        text = full = ""
        for path in sorted(self.folder.glob("*_log.err")):
            kept = [
                line
                for line in path.read_text(errors="replace").splitlines()
                if not line.startswith("submitit ")  # its own log
            ]
            text += "".join(f"\n  {line}" for line in kept[-8:])
        # What a node had to say may have found no room.
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.write(bytes(1 << 16))
                file.flush()
        except OSError as error:
            full = f"; {cannot_be_written(self.folder.parent, error)}"
        return full + (f"; its nodes wrote:{text}" if text else "")
