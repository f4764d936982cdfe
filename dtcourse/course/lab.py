"""JupyterLab as `dtcourse lab` and `make lab` open it, without a change to the reader's own settings.

What differs from a plain JupyterLab lies in jupyter/, beside this file, and reaches that one JupyterLab through
JUPYTER_CONFIG_PATH and JUPYTER_PATH:

    everyone/   no question about news over the first lesson, no look for updates (the lock has the versions);
                notebooks are saved in the course's form (`keep_form`); a style sheet, so that no output breaks
                inside a word
    students/   without nbgrader's menus and tools, which are an instructor's
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

CONFIGURATION = Path(__file__).with_name("jupyter")


def command(notebook: Path, home: Path, arguments: Iterable[str] = ()) -> list[str]:
    """What starts JupyterLab on a notebook, of this very Python; `arguments` go to JupyterLab.

    Its file browser begins at `home`, or at the notebook's own folder where that is elsewhere.
    """
    notebook = notebook.resolve()
    top = home if notebook.is_relative_to(home) else notebook.parent
    words = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={top}"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        words.append("--allow-root")  # in a container there is often nobody else
    return [*words, *arguments, str(notebook)]


def environment(
    base: Mapping[str, str] | None = None, *, instructor: bool = False
) -> dict[str, str]:
    """The environment variables of that JupyterLab: `base` (default: this process's) and the course's settings."""
    base = os.environ if base is None else base
    for_whom = ("everyone",) if instructor else ("students", "everyone")
    folders = [str(CONFIGURATION / name) for name in for_whom]
    paths = {}
    for variable in ("JUPYTER_CONFIG_PATH", "JUPYTER_PATH"):
        paths[variable] = os.pathsep.join([*folders, *filter(None, [base.get(variable)])])
    return {**base, **paths}


def keep_form(
    model: dict[str, Any], path: str = "", contents_manager: Any = None, **_: Any
) -> None:
    """Keep a notebook of the course as it is committed, where it was only read and run. JupyterLab calls this.

    The kernel tells its version of Python when a notebook is opened, and JupyterLab writes that down with its next
    save, two minutes later, though the reader has only read: with Python 3.12 a lesson executed with 3.11 would
    differ from what is committed, and the next `git pull` would refuse. Who runs a lesson and saves it would leave
    the random names of its widgets, how often each cell was run, and what was measured on this machine
    (saving.py). A student's copy keeps all that it shows.

    model:            what is about to be saved, as Jupyter's contents API has it; changed in place
    path:             of its file, below the folder where JupyterLab's file browser begins
    contents_manager: JupyterLab's, which knows that folder
    """
    content = model.get("content")
    if model.get("type") != "notebook" or not isinstance(content, dict):
        return
    metadata = content.get("metadata", {})
    language, record = metadata.get("language_info"), metadata.get("dtcourse")
    if "dtcourse" in metadata and isinstance(language, dict):
        language.pop("version", None)
    if isinstance(record, dict) and "code" in record:
        # Only here: a server that saves no notebook of the course needs none of it.
        from dtcourse.course import normalise, notebook, saving

        normalise.as_run_once(content.get("cells", []))
        with contextlib.suppress(OSError, notebook.NotebookError):
            before = notebook.read(
                Path(getattr(contents_manager, "root_dir", "")) / path.lstrip("/")
            )
            saving.as_before(content, before)
