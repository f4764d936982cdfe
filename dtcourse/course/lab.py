"""JupyterLab as `dtcourse lab` and `make lab` open it, without a change to the reader's own settings.

What differs from a plain JupyterLab lies in jupyter/, beside this file, and reaches that one JupyterLab through
JUPYTER_CONFIG_PATH and JUPYTER_PATH:

    everyone/   no question about news over the first lesson, no look for updates (the lock has the versions);
                notebooks are saved in the course's form (`keep_form`); a style sheet, so that no output breaks
                inside a word
    students/   without nbgrader's menus and tools, which are an instructor's
"""

from __future__ import annotations

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


def keep_form(model: dict[str, Any], **_: Any) -> None:
    """Leave Python's version out of a notebook of the course, as the committed ones do. JupyterLab calls this.

    The kernel tells its version when a notebook is opened, and JupyterLab writes that down with its next save,
    two minutes later, though the reader has only read. With Python 3.12 a lesson executed with 3.11
    would differ from what is committed, and the next `git pull` would refuse.

    model: what is about to be saved, as Jupyter's contents API has it; changed in place
    """
    content = model.get("content")
    if model.get("type") != "notebook" or not isinstance(content, dict):
        return
    metadata = content.get("metadata", {})
    language = metadata.get("language_info")
    if "dtcourse" in metadata and isinstance(language, dict):
        language.pop("version", None)
