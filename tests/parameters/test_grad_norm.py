"""The norm of gradients that are spread over any axes, against the norm of the whole."""

from __future__ import annotations

import math

import pytest
import torch
import torch.distributed as dist

from dtcourse import launch
from dtcourse.parameters.grad_norm import Spread, scale_to, total_norm


def over_axes(norm_type):
    """Four ranks, two axes: gradients on none, on one, on the other, on both, and on both with nothing on rank 3."""
    rank, here = dist.get_rank(), torch.device("cpu")
    rows = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
    columns = [dist.new_group([0, 2]), dist.new_group([1, 3])][rank % 2]
    torch.manual_seed(0)
    wholes = [torch.randn(12) for _ in range(4)] + [torch.randn(9)]
    parts = [
        (wholes[0], ()),
        (wholes[1].chunk(2)[rank % 2], (rows,)),
        (wholes[2].chunk(2)[rank // 2], (columns,)),
        (wholes[3].chunk(4)[rank], (rows, columns)),
        ([*wholes[4].chunk(3), torch.empty(0)][rank], (rows, columns)),
    ]
    spreads = [Spread([part.clone()], groups, here) for part, groups in parts]
    norm = total_norm(spreads, norm_type)
    truth = torch.linalg.vector_norm(torch.cat(wholes).double(), norm_type)
    held = [g for spread in spreads for g in spread.gradients]
    scale_to(held, norm, 0.5)
    after = total_norm([Spread(s.gradients, s.over, here) for s in spreads], norm_type)
    return norm.item(), truth.item(), after.item()


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3.0, math.inf])
def test_each_gradient_counts_once_whatever_it_is_spread_over(norm_type):
    run = list(launch(over_axes, 4, norm_type))
    for norm, truth, after in run:
        assert norm == pytest.approx(truth, rel=1e-6)
        assert after == pytest.approx(0.5, rel=1e-5)
    assert len({norm for norm, _, _ in run}) == 1, "the same number on every rank"


def test_one_message_an_axis_however_many_gradients():
    def step():
        here = torch.device("cpu")
        spreads = [Spread([torch.ones(3)], (dist.group.WORLD,), here) for _ in range(5)]
        total_norm([*spreads, Spread([torch.ones(2)], (), here)])

    run = launch(step, 2, backend="ring", record=True)
    assert run.traffic.calls(rank=0, operation="all_reduce") == 1


def test_mistakes_are_explained():
    one = torch.ones(1)
    with pytest.raises(ValueError, match=r"norm_type is a number above 0, or inf; got 0"):
        total_norm([], 0)
    with pytest.raises(ValueError, match=r"max_norm is a number above 0; got -1"):
        scale_to([one], one, -1)
    with pytest.raises(RuntimeError, match="norm is inf: there is nothing to clip to"):
        scale_to([one], torch.tensor(math.inf), 1.0, error_if_nonfinite=True)
