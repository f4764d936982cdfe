"""The course's own files, and whose a module is: what a template may load, and what it must not have loaded."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from functools import cache

import dtcourse

# Nothing that a rank would want; and what looks, while it is imported, at the environment or for packages that only
# the notebook's own sys.path has: a rank imports it itself, and finds what the notebook would.
LEFT_OUT = (
    "cli",
    "course",
    "plots",
    "memory/attention_triton.py",
    "compression/quantized/integers_triton.py",
)

COURSE = os.path.dirname(os.path.abspath(dtcourse.__file__))
_UNWANTED = {os.path.join(COURSE, name) for name in LEFT_OUT}


def sources() -> dict[str, tuple[int, int]]:
    """{file of the course: (time of its last change in ns, bytes)}: what a template is made from."""
    found: dict[str, tuple[int, int]] = {}
    folders = [COURSE]
    while folders:
        # What goes while we look is no source any more; an editor's lock is a link that leads nowhere.
        with suppress(FileNotFoundError), os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.name == "__pycache__" or entry.path in _UNWANTED:
                    continue
                if entry.is_dir():
                    folders.append(entry.path)
                    continue
                with suppress(FileNotFoundError):
                    status = entry.stat()
                    found[entry.path] = (status.st_mtime_ns, status.st_size)
    return found


def modules_of(files: Iterable[str]) -> list[str]:
    """The names under which `sources` are imported."""
    found = []
    for file in sorted(files):
        path, ending = os.path.splitext(os.path.relpath(file, os.path.dirname(COURSE)))
        if ending == ".py" and not path.endswith("__main__"):
            found.append(path.removesuffix("/__init__").replace("/", "."))
    return found


def users_modules() -> list[str]:
    """Modules of this process that come neither with Python, nor with a package of its, nor with the course."""
    files = {name: getattr(module, "__file__", None) for name, module in sys.modules.items()}
    return [
        name
        for name, file in files.items()
        # torch's modules made of nothing have a file name without a folder
        if file and os.path.isabs(file) and not file.startswith(COURSE) and not is_system(file)
    ]


def is_system(path: str) -> bool:
    """Whether a file or folder is one of Python's own, or of what is installed for it."""
    return path in _systems_folders()[0] or path.startswith(_systems_folders()[1])


@cache  # sysconfig makes them anew for each question: 1.3 s for the modules of a template
def _systems_folders() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Python's own folders, and how a path in one of them begins."""
    folders = [sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders += [*site.getsitepackages(), site.getusersitepackages(), sys.base_prefix + "/lib"]
    return tuple(folders), tuple(folder + os.sep for folder in folders)
