"""A pytest plugin: notebooks' kernels are split off from a process that has imported what nearly all of them do.

More than half of what it takes to execute the course's notebooks is to import PyTorch and matplotlib, once in each
kernel and once more in its fork server. Here each of pytest's processes has a nursery (nursery.py) that imports them
once. A notebook that forgets an import fails as it does in a kernel of its own, but for submodules of what the nursery
imports. So that what splitting off hides is seen, some notebooks have a kernel of their own: one in four, another
fourth with each tree, and those that set what PyTorch or Python reads when it is loaded.

    python -m pytest -p tools.forked_kernels --nbval lessons/
"""

from __future__ import annotations

import json
import os
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests import rotation
from tools import nursery

OWN = 4  # one of so many notebooks has a kernel of its own
# A variable of a cell's own process, given a value.
SETS = re.compile(
    r"(?:%(?:set_)?env |os\.environ\[['\"]|os\.(?:putenv|environ\.setdefault)\(['\"])"
    rf"(?:{'|'.join(nursery.READ_ONCE)})\w*(?:['\"](?:\] *=[^=]|,)|[ =])"
)
running = Path()  # the notebook whose cells run now


def pytest_configure(config: pytest.Config) -> None:
    """From now on kernels of this process come from its nursery."""
    hands_out = config.getoption("numprocesses", None) and not hasattr(config, "workerinput")
    if hands_out or not nursery.is_possible():
        return
    from jupyter_client.provisioning import local_provisioner

    ready = nursery.Nursery()
    usual = local_provisioner.launch_kernel

    def launch_kernel(cmd: list[str], **options: Any) -> Any:
        ours = cmd[0] == sys.executable and nursery.MODULE in cmd
        if ours and not begins_as_usual(running):
            return ready.kernel(cmd[cmd.index(nursery.MODULE) :], options) or usual(cmd, **options)
        return usual(cmd, **options)

    local_provisioner.launch_kernel = launch_kernel


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    """A notebook's kernel starts with its first cell."""
    global running
    running = item.path


def begins_as_usual(notebook: Path) -> bool:
    """Whether this notebook has a kernel of its own; a test that executes notebooks itself has it always."""
    if notebook.suffix != ".ipynb":
        return True
    drawn = (
        "0" if os.environ.get(rotation.TRIED) == "fixed" else rotation.draw()
    )  # `make test`: always the same ones
    by_turns = (zlib.crc32(notebook.name.encode()) + int(drawn[:8], 16)) % OWN == 0
    return by_turns or sets_what_is_read_once(notebook)


def sets_what_is_read_once(notebook: Path) -> bool:
    """Whether a cell sets a variable of its own process that has had its effect when a kernel is split off."""
    if not notebook.is_file():
        return False
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return bool(SETS.search(code))
