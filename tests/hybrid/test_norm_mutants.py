"""The global norm with an axis left out, or with one summed twice: another norm, on every axis."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest
import torch.distributed as dist

from dtcourse import launch
from dtcourse.hybrid import HybridConfig
from dtcourse.hybrid.config import AXES
from dtcourse.parameters import clipping
from dtcourse.parameters.grad_norm import total_norm
from tests.hybrid.layouts import (
    GROUPED,
    MICRO_BATCHES,
    MIXTURE,
    TIED,
    batch,
    own_samples,
    start,
    truth,
)

FAR = 1e-3  # what is right differs by 1e-12
# Over cp and dp_replicate gradients are whole on each rank: nothing is summed there, and nothing can be left out.
NORMS = {
    "dp_replicate": ({"dp_replicate": 2}, TIED, False),
    "dp_shard": ({"dp_shard": 2}, TIED, True),
    "dp_shard beside dp_replicate": ({"dp_replicate": 2, "dp_shard": 2}, TIED, True),
    "cp": ({"cp": 2}, TIED, False),
    "cp beside dp_shard": ({"cp": 2, "dp_shard": 2}, TIED, True),
    "tp": ({"tp": 2}, GROUPED, True),
    "tp beside pp": ({"tp": 2, "pp": 2}, TIED, True),
    "pp": ({"pp": 2}, TIED, True),
    "ep": ({"dp_shard": 2, "ep": 2}, MIXTURE, True),
}


def norms(name):
    """Of one gradient: the right norm, that without the sum over an axis, and that with the sum made twice."""
    degrees, model, _ = NORMS[name]
    cut = HybridConfig(**degrees, micro_batches=MICRO_BATCHES)
    made = start(model, cut)
    made.step(*own_samples(made, *batch(model, 0)))
    axis = name.split()[0]
    if axis == "ep":
        group = made.axes.folded(cut.ep)[1]
    elif cut.dp_shard > 1 and axis in ("dp_shard", "cp"):
        group = made.axes.group("dp_shard", "cp")
    else:
        group = made.axes.group(axis)
    ranks = dist.get_process_group_ranks(group)

    def left_out(spreads, norm_type, owners=()):
        kept = [
            [replace(s, over=tuple(g for g in s.over if dist.get_process_group_ranks(g) != ranks)) for s in spreads],
            [g for g in owners if dist.get_process_group_ranks(g) != ranks],
        ]  # fmt: skip
        return total_norm(kept[0], norm_type, kept[1])

    def doubled(spreads, norm_type, owners=()):
        return total_norm(spreads, norm_type, [*owners, group])

    found = [made.clip_grad_norm(1e9).item()]
    for wrong in (left_out, doubled):
        with mock.patch.object(clipping, "total_norm", wrong):
            found.append(made.clip_grad_norm(1e9).item())
    return found


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_without_an_axis_or_with_one_twice_is_another_norm(name):
    degrees, model, is_cut = NORMS[name]
    layout = HybridConfig(**degrees, micro_batches=MICRO_BATCHES)
    right = truth(model, layout.dp_replicate * layout.dp_shard).norms[0]
    for found, left_out, doubled in launch(norms, layout.ranks, name):
        assert found == pytest.approx(right, rel=1e-12)
        assert (abs(left_out / right - 1) > FAR) == is_cut
        assert doubled / right > 1 + FAR


def test_norms_are_tried_on_every_axis():
    assert {name.split()[0] for name in NORMS} == {*AXES, "ep"}
