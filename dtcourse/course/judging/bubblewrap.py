"""What an answer's process sees of the machine: bubblewrap's command line (bwrap, Linux).

The answer gets a file system of its own, made of what is listed here and of nothing else:

    /usr, /lib, ...       the system's programs and libraries, read-only
    the Python that runs  its environment and the one that it stands on (a venv, conda, pyenv), read-only
    /course               the course's package, read-only
    /tmp, /dev/shm        empty, its own, of limited size, gone with it; /tmp is its home
    /proc, /dev           its own processes, and the devices that every program has (null, random, ...)

So homes, submissions, solutions, keys and sockets are not hidden: they are not there. It has a loopback of its own and
no other network, sees and signals its own processes alone, and ends with the process that started it.

Started by an ordinary user, bubblewrap makes a user namespace. Started by root it needs none, and the answer runs
under a number that no user has: root, even one without capabilities, may write to /proc/sys.
"""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

COURSE = "/course"
HOME = "/tmp"
SCRATCHES = (HOME, "/dev/shm")  # the answer's own, not the machine's
SCRATCH = 512 * 2**20  # bytes in each
_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/sys/devices/system/cpu",  # what PyTorch asks for the number of cores
    "/sys/devices/system/node",
)
_OF_AN_ENVIRONMENT = ("bin", "lib", "lib32", "lib64", "include", "pyvenv.cfg")
# Numbers that no distribution gives to a user; systemd takes its dynamic users from them.
_NOBODYS = range(61184, 65520)
# exec, not setresuid alone: a process that changed its user shares no files with its children until it starts anew.
_BECOME = (
    "import os, sys; n = int(sys.argv[1]); "
    "os.setgroups([]); os.setresgid(n, n, n); os.setresuid(n, n, n); os.execv(sys.argv[2], sys.argv[2:])"
)


def command(modules: Mapping[str, Path], private: Iterable[Path] = ()) -> list[str]:
    """What to put in front of an answer's command.

    modules: files and folders to show below /course, by their path there
    private: folders that stay out of sight even where they lie inside something that is shown (a course that was
             cloned into /usr/src); an environment inside them is shown
    """
    words = ["bwrap", "--die-with-parent", "--unshare-ipc", "--unshare-pid", "--unshare-net"]
    words += ["--unshare-uts", "--hostname", "answer", "--unshare-cgroup-try", "--cap-drop", "ALL"]
    become = []
    if os.geteuid() == 0:
        words += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        number = str(secrets.choice(_NOBODYS))
        become = [sys.executable, "-I", "-S", "-c", _BECOME, number]
    else:
        words += ["--unshare-user", "--disable-userns"]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for folder in SCRATCHES:
        words += ["--perms", "1777", "--size", str(SCRATCH), "--tmpfs", folder]
    # After /tmp, where somebody's environment may be.
    words += _mounts(_shown(modules), {one.resolve() for one in private})
    words += ["--remount-ro", "/dev", "--remount-ro", "/", "--chdir", HOME]
    return [*words, "--", *become]


def seen(modules: Mapping[str, Path]) -> list[str]:
    """Where an answer sees files of this machine, and what bubblewrap makes for it: nothing else is there."""
    return [*_shown(modules), COURSE, "/proc", "/dev", "/sys"]


@cache
def why_not() -> str:
    """Why no sandbox can be made here: a clause for a sentence; empty where one can."""
    if sys.platform != "linux":
        return "bubblewrap needs Linux"
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (apt install bubblewrap)"
    try:
        done = subprocess.run(
            [*command({}), sys.executable, "-I", "-S", "-c", ""],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not work here ({error})"
    if done.returncode == 0:
        return ""
    said = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"bubblewrap does not work here ({said})"


def _shown(modules: Mapping[str, Path]) -> dict[str, str]:
    """What is shown: path inside -> path outside."""
    shown = {path: path for path in _SYSTEM}
    for path in _python():
        # Under both of its names, where it is reached through a link (~/.venv -> /scratch/venv).
        for name in (path, os.path.realpath(path)):
            shown[name] = name
    shown |= {f"{COURSE}/{name}": str(path) for name, path in modules.items()}
    return {inside: outside for inside, outside in shown.items() if os.path.exists(outside)}


def _python() -> list[str]:
    """The files of this Python: of its environment, of what that stands on, and packages from elsewhere."""
    bases = {sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    found = [os.path.join(base, name) for base in sorted(bases) for name in _OF_AN_ENVIRONMENT]
    found += packages(sys.path)
    found += filter(os.path.isabs, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    link = sys.executable
    while os.path.islink(link):  # each link of a chain of links may lie somewhere else
        found.append(link)
        link = os.path.normpath(os.path.join(os.path.dirname(link), os.readlink(link)))
    return [*found, link]


def packages(paths: Iterable[str]) -> list[str]:
    """Those of Python's folders that hold installed packages, not the course or somebody's work."""
    return [path for path in paths if path.endswith(("site-packages", "dist-packages"))]


def _mounts(shown: dict[str, str], private: set[Path]) -> list[str]:
    """bwrap's words for these files, a folder before what lies in it."""
    words: list[str] = []
    emptied: list[str] = []
    made = dict.fromkeys((Path("/"), *map(Path, SCRATCHES)), "empty")
    # LD_LIBRARY_PATH may name a home, or everything.
    everything = {*private, Path("/")}
    steps = [(Path(inside), 1, outside) for inside, outside in shown.items()]
    steps = [step for step in steps if step[0] not in everything]
    steps += [(path, 0, "") for path in private if path != Path("/")]
    for path, _, outside in sorted(steps):
        above = next(parent for parent in path.parents if parent in made)
        if not outside:
            if made[above] == "shown":
                words += ["--perms", "0755", "--tmpfs", str(path)]
                emptied += ["--remount-ro", str(path)]  # when what lies in it is there
                made[path] = "empty"
            continue
        if made[above] == "link" or (made[above] == "shown" and outside == str(path)):
            continue  # it is seen already
        if made[above] == "empty":
            for parent in reversed(path.parents[: path.parents.index(above)]):
                words += ["--perms", "0755", "--dir", str(parent)]
                made[parent] = "empty"
        if path.parent == Path("/") and path.is_symlink():  # /lib -> usr/lib
            words += ["--symlink", os.readlink(path), str(path)]
            made[path] = "link"
        else:
            words += ["--ro-bind", outside, str(path)]
            made[path] = "shown"
    return words + emptied


__all__ = ["COURSE", "HOME", "SCRATCH", "SCRATCHES", "command", "packages", "seen", "why_not"]
