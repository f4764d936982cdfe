"""A project with this one's settings and tools, and tests of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


OF_THE_SUITE = {f"DTCOURSE_TEST_{name}" for name in ("SHARE", "DRAW", "TURNS_END", "PARTS")}


class Project:
    """A folder with the repository's settings and tools, and room for tests of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tools = sorted(path.relative_to(ROOT) for path in ROOT.glob("tools/*.py"))
        names = ("conftest", "rotation", "subjects", "turns", "optional_programs")
        own = [f"tests/{name}.py" for name in names]
        others = ("pyproject.toml", *own)
        for name in (*map(Path, others), *tools):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)

    def write(self, name: str, text: str) -> None:
        """A test file."""
        (self.folder / "tests" / name).write_text(text)

    def start(self, *command: object, **environment: str) -> subprocess.Popen[str]:
        """A program in it. What takes seconds is left out: measuring the machine,
        and pytest's plugins that are not asked for."""
        plugins = {
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTEST_PLUGINS": "xdist.plugin,pytest_timeout",
        }
        # What the suite around it tries is nothing to it.
        inherited = {name: value for name, value in os.environ.items() if name not in OF_THE_SUITE}
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=self.folder,
            env={**inherited, "DTCOURSE_TEST_SLOWNESS": "1", **plugins, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """The same, to its end."""
        process = self.start(*command, **environment)
        try:
            out, errors = process.communicate(timeout=600)
        finally:
            process.kill()
        return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)
