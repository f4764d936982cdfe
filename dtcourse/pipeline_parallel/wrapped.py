"""Stages in a data-parallel wrapper: refused where it averages gradients backward by backward.

A step of a pipeline is many forwards and many backwards of one stage. A wrapper takes one backward for a step: it sends
as many messages as there are micro-batches, and it may find two forwards before a backward, where it raises an error on
one rank in the midst of a step, or waits for ever. PyTorch's also hides what the whole model calls its parameters, and
which of them are tied. ZeRO-2's (ShardedDataParallel) is made for it: it has owners, and they add up.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dtcourse.parameters.backward import averaged_by


def refuse_wrapped(stages: Sequence[nn.Module]) -> None:
    """Raises ValueError, naming wrapper or parameter, where a wrapper would average each micro-batch's gradients."""
    for stage in stages:
        for name, module in stage.named_modules():
            if isinstance(module, DistributedDataParallel):
                where = f"{name} of a stage" if name else "a stage"
                raise ValueError(_refusal(f"PyTorch's DistributedDataParallel is round {where}"))
        for name, parameter in stage.named_parameters():
            if any(not hasattr(one, "owners") for one in averaged_by(parameter)):
                raise ValueError(_refusal(f"a wrapper averages the gradient of {name}"))


def _refusal(what: str) -> str:
    return (
        f"Pipeline does not compose with a data-parallel wrapper: {what}, after each backward, and a step has one for "
        "each micro-batch. Pass the stages without it, let go of it first (del wrapper), and give Pipeline the ranks "
        "that hold the same stages: Pipeline(..., data_parallel=mesh.get_group('data')) averages once in a step"
    )
