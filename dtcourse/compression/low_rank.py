"""PowerSGD: a gradient that is a matrix travels as two thin ones, both of which can be added on the way.

    state = PowerSGDState(rank=2)
    model.register_comm_hook(state, compression_hook)

Source: Vogels et al. 1905.13727. The mean M of all ranks' n x m gradients is approximated by P Q^T of rank r, by one
step of the power method, which starts from the last step's Q (warm start):

    P = sum of M_i Q        all-reduced: n r numbers;   then orthonormal columns, on every rank alike
    Q = mean of M_i^T P     all-reduced: m r numbers
    each rank keeps what is left out of its gradient, M_i - P Q^T, and adds it to its next one (error feedback)

P P^T M is the best that the columns of P can do, whatever Q was, so full rank loses nothing. What is no matrix (biases,
norms) travels whole, beside the Ps; so does a matrix that would save too little. A convolution's weight is a matrix of
its output channels.

Numbers in the two all-reduces: all vectors and n r a matrix; m r a matrix. Memory: n m and m r numbers a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.compression.compressor import is_finite, load_generator
from dtcourse.compression.matrices import as_matrix, cut, mean_over_ranks, orthonormal
from dtcourse.compression.wire.background import group_beside
from dtcourse.compression.wire.of_model import (
    ModelParameters,
    OfModel,
    PerParameter,
    WholeStep,
    check_whose,
    whose,
)
from dtcourse.parameters.replicas import Group


class PowerSGDState(OfModel):
    """What compression_hook keeps for PowerSGD: one for each model. PyTorch's is powerSGD_hook's PowerSGDState.

    rank:           of the approximation; a matrix with fewer rows or columns takes as many as it has
    group:          the ranks to average over, the model's
    start_after:    steps at the beginning in which whole gradients travel
    min_compression_rate: a matrix travels whole unless it has more than so many times the numbers of its two factors
    error_feedback, warm_start: as above; without warm_start each step draws a new Q
    seed:           of the first Q, the same on every rank

    factors:  by parameter, the last Q: (m, r). Set one before the first step to begin with it
    left_out: by parameter, what is left out of this rank's gradient: (n, m)

    Where a gradient is not finite on any rank, the mean of that matrix is NaN on all of them, so that the step can be
    skipped; all Qs and what is left out stay as they were. Gradients of float64 are averaged in float64, others in
    float32. Raises ValueError, on all ranks, in the first step where the rank is too much for every matrix of the
    model.
    """

    def __init__(
        self,
        rank: int = 1,
        group: Group = None,
        *,
        start_after: int = 0,
        min_compression_rate: float = 2.0,
        error_feedback: bool = True,
        warm_start: bool = True,
        seed: int = 0,
    ) -> None:
        if not isinstance(rank, int) or rank < 1:
            raise ValueError(f"rank is a number of columns, 1 or more; got {rank!r}")
        if not isinstance(start_after, int) or start_after < 0:
            raise ValueError(f"start_after is a number of steps, 0 or more; got {start_after!r}")
        if not 0 <= min_compression_rate < math.inf:
            raise ValueError(
                f"min_compression_rate is 0 or more (0: every matrix); got {min_compression_rate!r}"
            )
        self.rank, self.group = rank, group
        self.start_after, self.min_compression_rate = start_after, min_compression_rate
        self.error_feedback, self.warm_start = error_feedback, warm_start
        self.steps = 0  # begun so far
        self.factors, self.left_out = PerParameter(), PerParameter()
        self._random = torch.Generator().manual_seed(seed)
        self._model, self._step = ModelParameters(self.factors, self.left_out), WholeStep()
        self._matrices: set[tuple[int, int]] = set()  # in the first step

    def reset(self) -> None:
        """Forgets what has been left out: after a jump in the weights, or another loss scale.

        The last Qs stay: they are where to look, and no part of a gradient.
        """
        self.left_out.clear()

    def state_dict(self) -> dict[str, Any]:
        """The steps, the Qs and their generator, and what this rank has left out. Each rank has its own, and saves it.

        Parameters are known by the order of the first step's buckets: register the hook before the first step.
        """
        return {
            **whose(self.group),
            **self._model.state_dict(),
            "rank_of_matrices": self.rank,
            "steps": self.steps,
            "factors": self._model.saved(self.factors),
            "left_out": self._model.saved(self.left_out),
            "random": self._random.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what this rank's state_dict() was.

        Raises ValueError for the state of another rank, another number of ranks, another rank of matrices or, in the
        first step, of another model.
        """
        check_whose(state, self.group)
        if state["rank_of_matrices"] != self.rank:
            raise ValueError(
                f"the saved state has Qs of {state['rank_of_matrices']} columns, and this one's rank is {self.rank}"
            )
        self._model.load_state_dict(state)
        self._model.load(self.factors, state["factors"])
        self._model.load(self.left_out, state["left_out"])
        self.steps = state["steps"]
        load_generator(self._random, state)

    def rank_of(self, shape: Sequence[int]) -> int:
        """The rank with which a parameter of that shape travels; 0 where it travels whole."""
        if len(shape) < 2 or 0 in shape:
            return 0
        n, m = as_matrix(shape)
        rank = min(self.rank, n, m)
        return rank if self.min_compression_rate * rank * (n + m) < n * m else 0

    def numbers(self, shapes: Iterable[Sequence[int]]) -> tuple[int, int]:
        """How many numbers the two all-reduces of a bucket of such parameters have."""
        first = second = 0
        for shape in shapes:
            n, m = as_matrix(shape)
            rank = self.rank_of(shape)
            first, second = first + (n * rank if rank else n * m), second + m * rank
        return first, second

    def begin(self, bucket: Any) -> Callable[[], Tensor]:
        """Makes the Ps; the function sends them, makes and sends the Qs,
        and returns the mean of the bucket's gradients.
        """
        self._model.check(bucket)
        parameters = list(bucket.parameters())
        if self.steps == 0:
            self._check_rank(parameters, bucket.is_last())
        if bucket.index() == 0:
            self._step = WholeStep()
        compresses = self.steps >= self.start_after
        self.steps += bucket.is_last()
        x, group = bucket.buffer(), group_beside(self.group)
        x = x if x.dtype == torch.float64 else x.float()
        if not compresses:
            return lambda: mean_over_ranks(x, group)
        return self._begin(x, bucket, group)

    def _begin(self, x: Tensor, bucket: Any, group: dist.ProcessGroup) -> Callable[[], Tensor]:
        parameters = list(bucket.parameters())
        parts = list(zip(parameters, x.split([p.numel() for p in parameters]), strict=True))
        whole = [part for parameter, part in parts if not self.rank_of(parameter.shape)]
        # In the bucket's own memory: what was left out is added to them there, and there the mean will be.
        low = [p for p in parameters if self.rank_of(p.shape)]
        matrices = [part.view(as_matrix(p.shape)) for p, part in parts if self.rank_of(p.shape)]
        ranks = [self.rank_of(p.shape) for p in low]
        step, is_last = self._step, bucket.is_last()
        first, second = (x.new_empty(count) for count in self.numbers(p.shape for p in parameters))
        rows = [(m.shape[0], rank) for m, rank in zip(matrices, ranks, strict=True)]
        columns = [(m.shape[1], rank) for m, rank in zip(matrices, ranks, strict=True)]
        vectors, ps = cut(first, sum(map(len, whole)), rows)
        _, qs = cut(second, 0, columns)
        torch.cat([*whole, x[:0]], out=vectors)
        for parameter, matrix, p in zip(low, matrices, ps, strict=True):
            if parameter in self.left_out:
                matrix += self.left_out[parameter]
            torch.mm(matrix, orthonormal(self._start(parameter, matrix)), out=p)

        def finish() -> Tensor:
            dist.all_reduce(first, group=group)
            vectors.div_(dist.get_world_size(group))
            for vector, mean in zip(whole, vectors.split([len(v) for v in whole]), strict=True):
                vector.copy_(mean)
            left_out, factors, finite = {}, {}, is_finite(vectors)
            bases = [orthonormal(p) if is_finite(p) else None for p in ps]
            for matrix, basis, q in zip(matrices, bases, qs, strict=True):
                q.zero_() if basis is None else torch.mm(matrix.t(), basis, out=q)
            if low:
                mean_over_ranks(second, group)
            for parameter, matrix, basis, q in zip(low, matrices, bases, qs, strict=True):
                if basis is None or not is_finite(q):
                    matrix.fill_(math.nan)
                    finite = False
                    continue
                if self.error_feedback:
                    left_out[parameter] = torch.addmm(matrix, basis, q.t(), alpha=-1)
                torch.mm(basis, q.t(), out=matrix)
                if self.warm_start:
                    factors[parameter] = q

            def keep() -> None:
                self.left_out.update(left_out)
                self.factors.update(factors)

            step.bucket_done(finite, is_last, keep)
            return x

        return finish

    def _start(self, parameter: Tensor, matrix: Tensor) -> Tensor:
        """The Q to begin with: the last one, drawn anew where there is none, or none of a column."""
        shape: tuple[int, int] = (matrix.shape[1], self.rank_of(parameter.shape))
        q = self.factors.get(parameter) if self.warm_start else self.factors.pop(parameter, None)
        if q is None:
            return self._drawn(shape, matrix)
        if tuple(q.shape) != shape:
            raise ValueError(f"factors holds a Q of shape {tuple(q.shape)} where {shape} is due")
        # A gradient of zero leaves a Q of zero, from which no step would find out again.
        empty = ~q.any(0)
        return torch.where(empty, self._drawn(shape, matrix), q) if empty.any() else q

    def _drawn(self, shape: tuple[int, int], like: Tensor) -> Tensor:
        return torch.randn(shape, generator=self._random, dtype=like.dtype).to(like.device)

    def _check_rank(self, parameters: list[Tensor], is_last: bool) -> None:
        self._matrices |= {as_matrix(p.shape) for p in parameters if p.dim() > 1 and p.numel()}
        if not is_last or any(self.rank <= min(m) and self.rank_of(m) for m in self._matrices):
            return
        if not self._matrices:
            raise ValueError("the model has no matrix, so there is nothing of low rank in it")

        def most(n: int, m: int) -> int:
            rate = self.min_compression_rate * (n + m)
            return min(n, m, math.ceil(n * m / rate) - 1 if rate else n)

        n, m = max(self._matrices, key=lambda shape: most(*shape))
        raise ValueError(
            f"rank {self.rank} is too much for every matrix of the model: one of {n} x {m} takes rank {most(n, m)} "
            f"at most to have more than {self.min_compression_rate:g} times the numbers of its two factors. Take a "
            "smaller rank, or a smaller min_compression_rate"
        )
