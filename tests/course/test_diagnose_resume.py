"""The trainings of exercise 16b-2 are in one process: they do what fully_shard and its optimizers do on real ranks."""

from __future__ import annotations

from random import Random

import pytest
import torch
from torch import nn

from dtcourse import launch
from dtcourse.course.checks.lesson_16b_fsdp_in_practice import resumed_runs

STEPS = 4


class TwoLayers(nn.Module):
    def __init__(self, weights: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList(weights)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return resumed_runs.loss_of(list(self.weights), x, y)


def trained(job: resumed_runs.Job) -> tuple[list[float], tuple[float, float]]:
    """On each rank: the losses of all, and the norms of what it holds."""
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(TwoLayers(resumed_runs.start_of(job)))
    optimizer = resumed_runs.OPTIMIZERS[job.optimizer](model.parameters())
    losses = []
    for step in range(STEPS):
        x, y = (t.chunk(job.ranks)[dist.get_rank()] for t in resumed_runs.batch(job, step))
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
        losses.append(loss.item() / job.ranks)
    held = {
        "rows": [p.detach().to_local() for p in model.parameters()],
        "states": [
            {
                name: getattr(value, "to_local", lambda value=value: value)()
                for name, value in s.items()
            }
            for s in optimizer.state_dict()["state"].values()
        ],
    }
    return losses, resumed_runs.norms([held])[0]


def test_the_ranks_of_one_process_train_as_fully_shard_does_on_ranks_of_their_own():
    job = resumed_runs.drawn("healthy", 0, Random(0))._replace(ranks=2)
    jobs = [job._replace(optimizer=optimizer) for optimizer in resumed_runs.OPTIMIZERS]
    real = launch(lambda: [trained(job) for job in jobs], 2, device="cpu")
    for i, job in enumerate(jobs):
        ranks = resumed_runs.Ranks(resumed_runs.start_of(job), job.ranks, job.optimizer)
        losses = [ranks.step(*resumed_runs.batch(job, step)) for step in range(STEPS)]
        for rank, held in enumerate(resumed_runs.norms(ranks.save())):
            assert losses == pytest.approx(real[rank][i][0], rel=1e-5)
            assert held == pytest.approx(real[rank][i][1], rel=1e-5)


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_a_run_without_a_mistake_goes_on_as_if_it_had_not_been_killed(turn):
    job = resumed_runs.drawn("healthy", turn, Random(turn))
    first, second, written, read = resumed_runs.resumed("healthy", job)
    assert (job.then == job.ranks) == (turn != 1) and (job.start < max(written)) == (turn == 2)
    both = sorted(set(first) & set(second))
    assert both[0] == job.start and len(both) >= 3
    for step in both:
        assert second[step] == pytest.approx(first[step], rel=1e-6)
    for i in (0, 1):
        total = sum(norm[i] ** 2 for norm in written[job.start])
        assert sum(norm[i] ** 2 for norm in read) == pytest.approx(total, rel=1e-12)
