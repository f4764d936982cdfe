"""A throw-away Slurm with several users, for tests that run as root: what one of them can do to another.

The users are accounts that every Linux has. Their processes, and the nodes, live in a mount namespace in which the
Python of these tests and the repository can be reached by everybody, also where they lie in a home that is closed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dtcourse.launch.cluster.throwaway import ThrowawaySlurm

ROOT = Path(__file__).resolve().parents[3]
ANA, EVE = "daemon", "games"


def can_be_had() -> bool:
    """Whether this process may become other users, and mount."""
    if os.geteuid() != 0:
        return False
    tried = [
        "unshare",
        "--mount",
        "setpriv",
        f"--reuid={EVE}",
        "--regid=0",
        "--clear-groups",
        "true",
    ]
    try:
        return subprocess.run(tried, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


class Users:
    """Two users of one cluster, each with a home of their own (0700) below `folder`, which is root's."""

    def __init__(self, slurm: ThrowawaySlurm, folder: Path) -> None:
        self.slurm, self.folder = slurm, folder
        for user in (ANA, EVE):
            home = self.home(user)
            home.mkdir(mode=0o700)
            subprocess.run(["chown", user, home], check=True)

    def home(self, user: str) -> Path:
        return self.folder / user

    def own(self, user: str, path: Path) -> None:
        """Gives that user a folder with all that is in it."""
        subprocess.run(["chown", "-R", user, path], check=True)

    def start(self, user: str, *command: str | Path, **environment: str) -> subprocess.Popen[str]:
        """A command of that user's, in their home; its output is one text."""
        inside = ["nsenter", f"--mount=/proc/{self.slurm.process}/ns/mnt", "setpriv"]
        inside += [f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        around = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
            "HOME": str(self.home(user)),
            "USER": user,
            "SLURM_CONF": os.environ["SLURM_CONF"],
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        script = f"cd {shlex.quote(str(self.home(user)))} && umask 022 && exec {shlex.join(map(str, command))}"
        return subprocess.Popen(
            [*inside, "sh", "-c", script],
            env={**around, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, user: str, *command: str | Path, **environment: str) -> tuple[int, str]:
        """Exit code and output of a command of that user's."""
        process = self.start(user, *command, **environment)
        said, _ = process.communicate(timeout=800)
        return process.returncode, said

    def python(self, user: str, code: str, **environment: str) -> tuple[int, str]:
        """Of a Python program, which is written into that user's home."""
        return self.run(user, sys.executable, self.write(user, code), **environment)

    def write(self, user: str, code: str, name: str = "cell.py") -> Path:
        """A file of that user's."""
        path = self.home(user) / name
        path.write_text(code)
        subprocess.run(["chown", user, path], check=True)
        return path


@contextmanager
def two_users(**options: int) -> Iterator[Users]:
    """A cluster of two nodes with two users."""
    with tempfile.TemporaryDirectory(prefix="dtcourse-users-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        kept = folder / "kept"
        kept.mkdir()
        inside = ("unshare", "--mount", "sh", "-euc", _opening(kept), "sh")
        with ThrowawaySlurm(nodes=2, users=True, inside=inside, **options) as slurm:
            yield Users(slurm, folder)


def _opening(kept: Path) -> str:
    """Shell that shows the needed folders under their names, with nothing else of the closed ones above them."""
    needed = [Path(name) for name in dict.fromkeys([sys.base_prefix, sys.prefix, str(ROOT)])]
    closed = {_closed(path) for path in needed} - {None}
    lines = []
    for index, path in enumerate(needed):
        lines += [f"mkdir {kept}/{index}", f"mount --rbind {shlex.quote(str(path))} {kept}/{index}"]
    for folder in closed:
        lines.append(f"mount -t tmpfs -o mode=755 none {shlex.quote(str(folder))}")
    for index, path in enumerate(needed):
        if _closed(path):
            lines += [f"mkdir -p {shlex.quote(str(path))}"]
            lines += [f"mount --rbind {kept}/{index} {shlex.quote(str(path))}"]
    return "; ".join([*lines, 'exec "$@"'])


def _closed(path: Path) -> Path | None:
    """The uppermost folder above it that others may not pass."""
    passed = [folder for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001]
    return passed[0] if passed else None
