"""The jobs of exercise diagnose_stall against the course's own loader: ranks that are launched and read by Prefetcher.

The loader reads on the virtual clock, where times are the same on every machine. Reads and decodes take their mean
here, in both. Prefetcher gives the next batch to the reader that is free first, and the logs' workers take turns, as
those of DataLoader: so "shards", where the turns are uneven, is not compared. All else is the same to TOLERANCE of the
job's time, long reads included.
"""

from __future__ import annotations

import random

import pytest

from dtcourse import data, emulation, launch
from dtcourse.course.checks.lesson_07b_data_stalls import stall_logs
from dtcourse.emulation import EmulatedNetwork

TOLERANCE = 1e-6


def on_a_rank(job):
    """Moments at which this rank's steps end, and seconds for which it waited for batches, of all epochs."""
    import torch
    import torch.distributed as dist

    rank, ends, waited = dist.get_rank(), [], 0.0
    first = emulation.now()
    for epoch in range(stall_logs.EPOCHS):

        def made(batch, epoch=epoch):
            if batch < job.workers:
                emulation.sleep(job.start)
            emulation.sleep(job.long.get((epoch, rank, batch), job.read[rank]) + job.decode[rank])

        depth = job.ahead * job.workers - 1
        batches = iter(data.Prefetcher(range(stall_logs.STEPS), depth, made, job.workers))
        for _ in range(stall_logs.STEPS):
            asked = emulation.now()
            next(batches)
            waited += emulation.now() - asked
            emulation.sleep(job.compute[rank])
            dist.all_reduce(torch.zeros(1))
            ends.append(emulation.now() - first)
    return ends, waited


class Mean:
    """In place of `random` in a job's run: everything takes its mean."""

    @staticmethod
    def uniform(low, high):
        return (low + high) / 2


@pytest.mark.parametrize("kind", ["healthy", "storage", "decode", "prefetch", "start", "compute"])
def test_a_log_says_what_the_loader_does(kind, monkeypatch):
    random.seed(kind)
    job, _ = stall_logs._drawn(
        kind, 0
    )  # turn 0 has long reads here and there, where the kind has them
    monkeypatch.setattr(stall_logs, "random", Mean)
    rows = stall_logs.run(job)
    said = sorted({row[6] for row in rows if row[4] in ("compute", "wait: ranks")})
    run = launch(
        on_a_rank,
        job.ranks,
        job,
        device="cpu",
        backend="ring",
        network=EmulatedNetwork(),
        clock="virtual",
    )
    whole = run[0][0][-1]
    assert said[-1] == pytest.approx(whole, rel=TOLERANCE)
    for rank, (ends, waited) in enumerate(run):
        logged = sum(row[6] - row[5] for row in rows if row[0] == rank and row[4] == "wait: batch")
        assert logged == pytest.approx(waited, abs=TOLERANCE * whole)
        # Each step of the loader's ends at a moment of the log.
        for end in ends:
            assert min(abs(end - one) for one in said) <= TOLERANCE * whole
