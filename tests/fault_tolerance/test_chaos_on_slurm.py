"""A node of a real Slurm dies in the middle of a training: Slurm starts the job again on others, to the same bits."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dtcourse import launch
from dtcourse.course import survivor
from dtcourse.fault_tolerance import folders, mark
from tests.fault_tolerance.surviving import SETTINGS
from tests.fault_tolerance.test_preemption import MINUTE, environment, wait_for

PROGRAM = Path(__file__).with_name("surviving.py")
BATCH = """#!/bin/bash
#SBATCH --nodes=2 --ntasks=4 --ntasks-per-node=2 --requeue --open-mode=append --output={folder}/out
echo $SLURM_JOB_NODELIST >> {folder}/nodes
export MASTER_ADDR=127.0.0.1 MASTER_PORT={port}
srun {python} -m dtcourse.launch {program}:survive --folder {folder}
"""


@pytest.mark.slurm
@pytest.mark.slow
@pytest.mark.stands_on("dtcourse/fault_tolerance/", "dtcourse/launch/cluster/")
def test_a_node_is_killed_and_the_job_is_started_again_and_ends_with_the_same_bits(tmp_path):
    from dtcourse.launch.cluster.throwaway import ThrowawaySlurm

    alone = launch(survivor.train, 4, str(tmp_path / "alone"), "DDP", SETTINGS)[0]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = BATCH.format(folder=tmp_path, port=port, python=sys.executable, program=PROGRAM)
    with ThrowawaySlurm(nodes=3, cpus=2) as slurm:
        subprocess.run(
            ["sbatch", "--parsable"], input=script, env=environment() | {"SLURM_CONF": os.environ["SLURM_CONF"]},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        # Two checkpoints are there, and half of the training is to come.
        wait_for(tmp_path / "checkpoints" / folders.name_of(SETTINGS.steps // 2) / mark.NAME)
        assert wait_for(tmp_path / "nodes") == "n[1-2]\n"
        slurm.kill_node("n1")  # where the script runs: nobody is left there to say how it ended
        ends = [wait_for(tmp_path / f"end-{rank}", 4 * MINUTE) for rank in range(4)]
    assert (tmp_path / "nodes").read_text() == "n[1-2]\nn[2-3]\n"
    assert ends == [f"1 {alone}"] * 4
