"""PyTorch's own flight recorder and its analyser on the same hang, beside ours.

On gloo (torch 2.13) its dump leaves every collective "scheduled", finished or not, and names no group's ranks, without
which its analyser stops with a KeyError. With the ranks filled in by hand it finds the rank that is missing. That the
rank had returned, and from which line it made its last call, is in ours.
"""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import torch.distributed as dist

from dtcourse import launch, torch_private
from dtcourse.debugging import diagnose_hang
from tests.debugging import cases, hanging

CASE = "leaves_early"


def both(folder):
    """The hang, with torch's dump written where ours is."""
    meet = hanging._meet

    def dump_and_meet(store, key):
        if key.endswith("/written"):
            (folder / f"torch_{dist.get_rank()}").write_bytes(torch_private.flight_dump())
        meet(store, key)

    hanging._meet = dump_and_meet
    hanging.run_all({CASE: cases.CASES[CASE]}, folder)


def analysed(folder):
    command = [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", "-p", "torch_"]
    done = subprocess.run([*command, str(folder)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.stands_on(
    "dtcourse/debugging", "dtcourse/collectives/flight", "dtcourse/torch_private"
)
def test_what_each_finds(tmp_path):
    launch(both, 3, tmp_path, timeout=120, env={"TORCH_FR_BUFFER_SIZE": "100"})
    dumps = {rank: pickle.loads((tmp_path / f"torch_{rank}").read_bytes()) for rank in range(3)}
    assert {e["state"] for dump in dumps.values() for e in dump["entries"]} == {"scheduled"}
    assert "KeyError" in analysed(tmp_path)
    for rank, dump in dumps.items():
        names = {entry["process_group"][0] for entry in dump["entries"]}
        group = {"desc": "undefined", "ranks": "[0, 1, 2]"}
        dump["pg_config"] = {name: {"name": name, **group} for name in names}
        (tmp_path / f"torch_{rank}").write_bytes(pickle.dumps(dump))
    theirs = analysed(tmp_path)
    assert "Not all ranks joining collective" in theirs and "missing ranks: {2}" in theirs
    assert "returned" not in theirs
    ours = diagnose_hang(tmp_path / CASE, hanging.WAITED / 2)
    assert (ours.kind, ours.ranks) == ("left", [2]) and "left (returned)" in ours.sentence
