"""Compression for DistributedDataParallel, ours and PyTorch's: what happens to a bucket in place of the all-reduce.

    state = CompressionState(TopK(0.01))
    model.register_comm_hook(state, compression_hook)

A bucket is compressed when it is full; what follows (its messages, the sum, its second stage) goes on beside backward,
bucket after bucket, and backward waits for it at its end (background.py). So a step takes the longer of the two, as
without compression.

With error feedback, what was left out of a parameter's gradient stays with that parameter: buckets are built anew after
the first step, when the order of the gradients is known, and a parameter may find itself in another one. What was left
out of the sum (REDUCE_SCATTER) belongs to a place in a bucket; then it goes to what its rank has left out of the
parameters there.

A parameter that no rank uses in a step (find_unused_parameters) is given no gradient by DistributedDataParallel, ours
or PyTorch's: what was sent of it in that step, out of what had been left out, does not arrive.

What a step leaves out is kept when its last bucket has come and all means are finite, so a step that is skipped changes
nothing of it. Memory with error feedback: n numbers per rank, and n / p for REDUCE_SCATTER; twice that while backward
runs.
"""

# No `from __future__ import annotations` here: PyTorch's DDP looks at the hook's annotations, which have to be types.

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.compression.compressor import Compressor, Residuals, Rounds, require_contraction
from dtcourse.compression.wire.averaging import begin
from dtcourse.compression.wire.background import group_beside, in_background
from dtcourse.compression.wire.of_model import (
    ModelParameters,
    OfModel,
    PerParameter,
    WholeStep,
    check_whose,
    whose,
)
from dtcourse.parameters.hook_states import note_called
from dtcourse.parameters.replicas import Group


class BucketAverage(Protocol):
    """What the hook asks of a state: CompressionState for vectors, PowerSGDState for matrices."""

    group: Group

    def begin(self, bucket: Any) -> Callable[[], Tensor]:
        """Compresses a bucket's gradients now; the function sends them and returns their mean: (n,)."""


class CompressionState(OfModel):
    """What the hook keeps: one for each model.

    compressor:     the method
    group:          the ranks to average over, the model's
    error_feedback: whether what is left out is sent later; a compressor that is no contraction is refused then

    left_out: by parameter, what is left out of its gradient, flat

    Where a gradient is not finite on any rank, in any bucket, the step is to be skipped (as a GradScaler does), and
    what is kept stays as it was on all ranks. Raises ValueError for a compressor that error feedback makes diverge.
    """

    def __init__(
        self, compressor: Compressor | Rounds, group: Group = None, *, error_feedback: bool = True
    ) -> None:
        if not isinstance(compressor, Compressor | Rounds):
            raise ValueError(
                f"CompressionState takes a compressor, such as TopK(0.01); got {compressor!r}"
            )
        if error_feedback:
            require_contraction(compressor)
        self.compressor, self.group, self.error_feedback = compressor, group, error_feedback
        self.left_out = PerParameter()
        # By the positions of a bucket's parameters: of the part of the sum that this rank compresses again.
        self.left_out_of_parts: dict[tuple[int, ...], Tensor] = {}
        self._model = ModelParameters(self.left_out)
        self._step = WholeStep()

    def begin(self, bucket: Any) -> Callable[[], Tensor]:
        """Compresses a bucket's gradients; the function returns their mean over the ranks: (n,), of compressor.takes.

        Raises ValueError, on every rank, for a bucket of another model than before.
        """
        positions = self._model.check(bucket)
        x, group = bucket.buffer().to(self.compressor.takes), group_beside(self.group)
        if isinstance(self.compressor, Compressor):
            self.compressor.slot = positions
        if not self.error_feedback:
            return begin(x, self.compressor, group)
        if bucket.index() == 0:
            self._step = WholeStep()
        step, is_last, parameters = self._step, bucket.is_last(), list(bucket.parameters())
        self._hand_over_parts(positions)
        residuals = Residuals(self._of(parameters, x), self.left_out_of_parts.get(positions))
        average = begin(x, self.compressor, group, residuals)

        def keep() -> None:
            assert residuals.own is not None, "there is error feedback"
            each = residuals.own.split([p.numel() for p in parameters])
            self.left_out.update(zip(parameters, each, strict=True))
            if residuals.part is not None:
                self.left_out_of_parts[positions] = residuals.part

        def finish() -> Tensor:
            mean = average()
            step.bucket_done(residuals.finite, is_last, keep)
            return mean

        return finish

    def reset(self) -> None:
        """Forgets what has been left out: after a jump in the weights, or another loss scale."""
        self.left_out.clear()
        self.left_out_of_parts.clear()

    def state_dict(self) -> dict[str, Any]:
        """What this rank has left out, and what the compressor remembers. Each rank has its own, and saves it.

        Parameters are known by the order of the first step's buckets: register the hook before the first step. A run
        that goes on with it is the same to the bit where its first step's buckets are those of later steps: in our
        DistributedDataParallel, of a model whose parameters are registered in the order of their use, or where they are
        restored too, and both runs have called `know`.
        """
        return {
            **whose(self.group),
            **self._model.state_dict(),
            "left_out": self._model.saved(self.left_out),
            "left_out_of_parts": {k: part.clone() for k, part in self.left_out_of_parts.items()},
            "compressor": self.compressor.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what this rank's state_dict() was.

        Raises ValueError for the state of another rank, another number of ranks, another compressor or, in the first
        step, of another model.
        """
        check_whose(state, self.group)
        self.compressor.load_state_dict(state["compressor"])
        self._model.load_state_dict(state)
        self._model.load(self.left_out, state["left_out"])
        self.left_out_of_parts = {k: part.clone() for k, part in state["left_out_of_parts"].items()}

    def _of(self, parameters: list[Tensor], like: Tensor) -> Tensor:
        nothing = like.new_zeros
        return torch.cat([self.left_out.get(p, nothing(p.numel())) for p in parameters])

    def _hand_over_parts(self, positions: tuple[int, ...]) -> None:
        """What was left out of the sum of a bucket that is no more goes to this rank's own, p times: a p-th of that
        arrives in a mean.
        """
        for old in [
            k for k in self.left_out_of_parts if k != positions and set(k) & set(positions)
        ]:
            part, p = self.left_out_of_parts.pop(old), dist.get_world_size(self.group)
            start = dist.get_rank(self.group) * len(part)  # of the part, in the bucket
            for position, n in zip(old, self._model.sizes(old), strict=True):
                first, last = max(0, start), min(n, start + len(part))
                if first < last:
                    values = p * part[first - start : last - start]
                    self._model.add_to(self.left_out, position, slice(first, last), values)
                start -= n


def compression_hook(
    state: BucketAverage, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """register_comm_hook's hook. Its Future has the mean when the bucket's last message has come.

    Raises ValueError for a state that is none.
    """
    if isinstance(state, Compressor | Rounds) or not hasattr(state, "begin"):
        got = "None" if state is None else type(state).__name__
        raise ValueError(
            "compression_hook is registered with a state that averages buckets: "
            f"register_comm_hook(CompressionState(TopK(0.01)), compression_hook), or with PowerSGDState, TopRows, "
            f"TernGradState or MajorityVote; got {got}"
        )
    note_called(state)
    return in_background(state.begin(bucket), bucket.buffer(), state.group)
