"""What the suite asks of the machine that it runs on (tools/machine.py)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has scheduling policies")
def test_what_starts_after_it_is_scheduled_for_throughput_until_as_usual_again():
    policy = "import os, sys; print(os.sched_getscheduler(0))"
    code = f"""
import subprocess, sys
import machine
for batch in (True, False):
    machine.schedule(batch)
    subprocess.run([sys.executable, "-c", {policy!r}], check=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=TOOLS, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(os.SCHED_BATCH), str(os.SCHED_OTHER)]


def test_where_there_are_no_policies_it_leaves_things_as_they_are(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import machine

    monkeypatch.delattr(os, "SCHED_BATCH", raising=False)
    monkeypatch.delattr(os, "sched_setscheduler", raising=False)
    machine.schedule(batch=True)
