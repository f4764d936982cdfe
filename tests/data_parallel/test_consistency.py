"""Replicas that drifted apart are found, by one checksum a tensor (tests/parameters/test_checksum.py)."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import launch
from dtcourse.data_parallel import check_replicas
from dtcourse.data_parallel.consistency import ReplicasDiffer


def step():
    """What is said of four models on three ranks, and the bytes that the check of the first one cost."""
    rank = dist.get_rank()

    def build(bias=0.0, mean=0.0):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        with torch.no_grad():
            model[0].bias[1] += bias
            model[1].running_mean += mean
        return model

    check_replicas(nn.Identity())  # nothing to compare
    check_replicas(build())
    found = []
    for wrong in ({"bias": 1e-3 * (rank == 2)}, {"mean": rank, "bias": 1e-3 * (rank == 1)}):
        try:
            check_replicas(build(**wrong))
        except ReplicasDiffer as error:
            found.append((error.tensors, error.ranks, str(error)))
    return found


def test_names_the_tensors_and_the_ranks_on_every_rank():
    run = launch(step, 3, backend="ring", record=True)
    for found in run:
        first, second = found
        assert first[:2] == (["0.bias"], [2])
        assert "1 of 7 tensors are not the same on all ranks: 0.bias" in first[2]
        assert second[:2] == (["0.bias", "1.running_mean"], [1, 2])
    assert run.traffic.bytes_sent(rank=0) == 3 * 2 * 7 * 8  # 3 checks, to 2 ranks, 7 tensors


def test_one_rank_is_always_of_one_mind():
    launch(lambda: check_replicas(nn.Linear(2, 2)), 1)
