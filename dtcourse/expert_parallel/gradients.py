"""Gradients of experts and of all else: each summed over those who hold the same, and divided by the same number.

What counts is the mean of the losses of all W ranks. Backward on a rank begins at its own loss,
and what it leaves there is:

    an expert's gradient       from the tokens of all ranks that send to it: a sum of p ranks' losses already
    any other parameter's      from its own tokens: one rank's loss

So experts are summed over the W / p ranks that hold them too, all others over all W ranks, and *both* are divided by W.
Averaging experts over those that hold them, as DistributedDataParallel would, is p times too much; SGD shows it, Adam
hides it.

Gradients that are summed over the same ranks travel together (parameters/averaging.py). Bytes: an all-reduce of each
parameter that a rank holds, on each axis on which others hold it.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dtcourse.parameters import whole
from dtcourse.parameters.averaging import average
from dtcourse.parameters.cuts import EXPERT
from dtcourse.parameters.naming import entries


def average_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """Makes each gradient that of the mean of all ranks' losses. Between backward and the optimizer's step,
    on all ranks.

    mesh: the one of expert_parallel. A parameter without a gradient counts as zero, as others may have one.

    What full sharding has averaged over an axis already is left so: with fully_shard over the data axis, each rank's
    part of the others' gradients is summed over the expert axis alone, and experts' are divided by its ranks.

    Raises ValueError for parameters that expert_parallel has not seen: a stage without a gate that was left out.
    """
    if mesh.size() > 1:
        _require_given_out(model)
    average(model, [mesh.get_group(i) for i in range(mesh.ndim)])


def _require_given_out(model: nn.Module) -> None:
    for entry in entries(model):
        if not any(cut.technique == EXPERT for cut in entry.placed.cuts):
            raise ValueError(
                f"{entry.names[0]} has not been through expert_parallel: nobody has seen to it that the ranks of the "
                "mesh start with the same values. Call expert_parallel(stage, mesh) for each stage of a pipeline, "
                "those without a gate too, and before anything that makes parameters anew"
            )


def full_gradients(model: nn.Module) -> dict[str, Tensor | None]:
    """The plain model's gradients by its names, on every rank; None where there is none. A collective."""
    return whole.full_gradients(model)
