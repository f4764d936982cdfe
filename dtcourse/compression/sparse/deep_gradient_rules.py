"""Deep gradient compression's rules: the warm-up of its sparsity, clipping on each rank, and what it refuses."""

from __future__ import annotations

import torch
from torch import Tensor

from dtcourse.compression.sparse.top_k import checked_ratio

WARM_UP_EPOCHS = 4


def warm_up_ratio(epoch: int, ratio: float = 0.001, epochs: int = WARM_UP_EPOCHS) -> float:
    """The part that is sent in an epoch: a quarter in the first, a quarter of that in the next, and so on;
    then ratio.
    """
    if epoch < 0 or epochs < 0:
        raise ValueError(f"epochs are counted from 0; got epoch {epoch} of a warm-up of {epochs}")
    return max(0.25 ** (epoch + 1), checked_ratio(ratio)) if epoch < epochs else ratio


def local_clip(norms: Tensor, clip_norm: float, p: int) -> float:
    """What a rank multiplies its gradient by, before it is added to what waits. norms: of its parts.

    The whole gradient is the sum of p ranks' g / p; where they are independent its norm is sqrt(p) times that of one of
    them. So g / p is clipped to clip_norm / sqrt(p), the paper's N^(-1/2) of the threshold.
    """
    norm = torch.linalg.vector_norm(norms).item() / p
    limit = clip_norm / p**0.5
    return 1.0 if norm <= limit else limit / norm  # NaN stays NaN


def refuse_momentum(optimizer: torch.optim.Optimizer) -> None:
    """Raises ValueError for an optimizer with momentum: it would be applied twice."""
    for number, group in enumerate(optimizer.param_groups):
        own = {name: group[name] for name in ("momentum", "betas") if group.get(name)}
        if own:
            raise ValueError(
                f"deep gradient compression has the momentum in it, and {type(optimizer).__name__} has {own} in "
                f"parameter group {number}: each gradient would get it twice. Use torch.optim.SGD(..., momentum=0), "
                "and give the momentum to DeepGradientState"
            )


def hand_on(source: torch.futures.Future[Tensor], target: torch.futures.Future[Tensor]) -> None:
    """The target gets the source's value, or its error, when there is one."""

    def done(future: torch.futures.Future[Tensor]) -> None:
        try:
            target.set_result(future.value())
        except Exception as error:  # whatever it was, who waits for the target is told
            target.set_exception(error)  # type: ignore[arg-type]  # torch says Tensor

    source.add_done_callback(done)
