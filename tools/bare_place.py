"""A place like a student's: a copy of this clone in a folder whose path has a space, an environment of its own, an
ordinary user, and none of the optional programs (tests/optional_programs.py) on PATH.

    top/a clone/          the files that git would commit, and an empty .git
    top/a clone/.venv/    this environment, moved: its packages are linked, and its scripts and paths are the copy's
    top/bin/              a link to each program on PATH but the hidden ones
    top/home/, top/tmp/   the user's own

Linux alone (cp --link, setpriv, unshare).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests import optional_programs  # noqa: E402

NOBODY = 65534
# Kept of the caller's environment: what says nothing of this user or of this place.
KEPT = ("CI", "LANG", "LC_ALL", "TERM", "TZ")
# Makes everything below $1 ($2 alone excepted) invisible, in a mount namespace of its own, and runs the rest.
COVER = """
set -e
blocked=$1 kept=$2 beside=$3
shift 3
mount --bind "$kept" "$beside"
mount -t tmpfs -o mode=755 none "$blocked"
mkdir -p "$kept"
mount --bind "$beside" "$kept"
exec "$@"
"""


class Place:
    """All of it, below `top`, an empty folder."""

    def __init__(self, top: Path) -> None:
        self.top, self.clone, self.programs = top, top / "a clone", top / "bin"
        self.beside = top / "python"
        top.chmod(0o755)
        for folder in (self.clone, self.programs, self.beside, top / "home", top / "tmp"):
            folder.mkdir()
        self.copy_clone()
        if os.geteuid() == 0:
            for folder in (self.clone, top / "home", top / "tmp"):
                subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(folder)], check=True)
        self.move_environment()
        self.link_programs()

    def copy_clone(self) -> None:
        """What git would commit of the working tree."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        for name in listed.split("\0"):
            source, copy = ROOT / name, self.clone / name
            if name and (source.is_file() or source.is_symlink()):
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, copy, follow_symlinks=False)
        (self.clone / ".git").mkdir()  # a clone, then; who asks git finds none

    def move_environment(self) -> None:
        """.venv of the copy: of the same Python, with the packages that are installed here."""
        here, there = Path(sys.prefix), self.clone / ".venv"
        base = getattr(sys, "_base_executable", sys.executable)
        subprocess.run([base, "-m", "venv", "--without-pip", str(there)], check=True)
        [packages] = there.glob("lib/python3*/site-packages")
        packages.rmdir()
        linked = [
            (path, there / path.name) for path in (here / "share", here / "etc") if path.is_dir()
        ]
        for source, copy in [(here / packages.relative_to(there), packages), *linked]:
            link = ["cp", "--archive", "--link", str(source), str(copy)]
            if subprocess.run(link, capture_output=True, check=False).returncode:  # another disk
                shutil.rmtree(copy, ignore_errors=True)
                subprocess.run(["cp", "--archive", str(source), str(copy)], check=True)
        # Files that say where they are. A link is taken away before it is written: it is this environment's file too.
        (packages / "dtcourse.pth").unlink()
        (packages / "dtcourse.pth").write_text(f"{self.clone}\n")
        for script in (here / "bin").iterdir():
            if not (there / "bin" / script.name).exists() and script.is_file():
                self.move_script(script, there / "bin" / script.name)
        ready = here / "dtcourse-ready"
        (there / ready.name).write_text(ready.read_text().replace(str(here), str(there)))

    def move_script(self, script: Path, copy: Path) -> None:
        """A program that begins with the path of Python, as pip writes it where that path has a space."""
        here, python = str(Path(sys.prefix)), self.clone / ".venv" / "bin" / "python"
        content = script.read_bytes()
        if content.startswith(b"#!"):
            text = re.sub(r"\A#!\S*/python[\d.]*\n", "", content.decode())
            if text != content.decode():
                text = (
                    f"#!/bin/sh\n'''exec' {shlex.quote(str(python))} \"$0\" \"$@\"\n' '''\n{text}"
                )
            content = text.replace(here, str(python.parents[1])).encode()
        copy.write_bytes(content)
        copy.chmod(0o755)

    def link_programs(self) -> None:
        """The user's PATH: each program that the user can reach, by its first place, but no optional one."""
        own = Path(sys.prefix, "bin")
        for folder in map(Path, os.environ["PATH"].split(os.pathsep)):
            if not folder.is_dir() or folder == own or blocked(folder):
                continue
            for program in folder.iterdir():
                link = self.programs / program.name
                if not optional_programs.hidden(program.name) and not link.is_symlink():
                    link.symlink_to(program)

    def command(self, *words: str) -> list[str]:
        """The words as that user's command."""
        if os.geteuid():
            return list(words)
        user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *words]
        base = Path(sys.base_prefix).resolve()
        if (above := blocked(base)) is None:
            return user
        # This Python lies in a folder that is root's alone: there it is all that the user sees.
        cover = ["unshare", "--mount", "sh", "-c", COVER, "sh"]
        return [*cover, str(above), str(base), str(self.beside), *user]

    def environment(self) -> dict[str, str]:
        """That user's."""
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        own = {"HOME": str(self.top / "home"), "TMPDIR": str(self.top / "tmp")}
        return {**kept, **own, "PATH": str(self.programs)}


def blocked(folder: Path) -> Path | None:
    """The outermost folder on the way to this one that an ordinary user may not pass; None where there is none."""
    folder = folder.resolve()
    way = [*reversed(folder.parents), folder]
    return next((one for one in way if not one.stat().st_mode & 0o001), None)
