"""A class on one cluster: ten students press Shift-Enter at once, and there is room for a few of them at a time."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.launch import RankFailure
from dtcourse.launch.cluster import jobs
from dtcourse.launch.cluster.throwaway import ThrowawaySlurm
from tests.launch.cluster.notebooks import own_settings, queue, until
from tests.turns import takes_turns

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    takes_turns("dtcourse/launch/cluster/"),
]

STUDENTS, NODES, CPUS = 10, 2, 4  # two ranks each: four jobs run at a time


def total(number):
    """What two ranks have together, and where they were. Student 7 has made a mistake."""
    value = torch.tensor([number])
    dist.all_reduce(value)
    if number == 7 and dist.get_rank():
        raise ValueError(f"the mistake of student {number}")
    return value.item(), os.environ["SLURM_JOB_ID"]


def test_ten_students_at_once_get_their_own_results(tmp_path, monkeypatch):
    """From one notebook each, as far as Slurm can see; what fails is one student's alone, and nothing is left."""
    settings = own_settings(tmp_path, monkeypatch)
    settings.write_text(settings.read_text() + "wait_minutes = 10\n")
    took = {}

    def student(number):
        begun = time.monotonic()
        try:
            return list(launch(total, 2, number, cluster="slurm", timeout=None))
        except RankFailure as failure:
            return str(failure)
        finally:
            took[number] = time.monotonic() - begun

    with ThrowawaySlurm(nodes=NODES, cpus=CPUS), ThreadPoolExecutor(STUDENTS) as pool:
        found = dict(enumerate(pool.map(student, range(STUDENTS))))
        until(lambda: not queue())
        states = [job.state for job in jobs.known(tmp_path / "jobs")]
    print("seconds:", *(f"{seconds:.1f}" for seconds in sorted(took.values())))
    assert "rank 1 of 2 raised ValueError: the mistake of student 7" in found.pop(7)
    assert {number: [value for value, _ in run] for number, run in found.items()} == {
        number: [2 * number] * 2 for number in found
    }
    names = [{name for _, name in run} for run in found.values()]
    assert all(len(one) == 1 for one in names) and len(set.union(*names)) == len(found)
    assert sorted(states).count("COMPLETED") >= len(found)
