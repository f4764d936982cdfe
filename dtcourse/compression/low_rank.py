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

from dtcourse.compression.wire.background import group_beside
from dtcourse.compression.wire.comm_hook import ModelParameters
from dtcourse.parameters.replicas import Group


class PowerSGDState:
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
    skipped; its Q and what is left out stay as they were. Gradients of float64 are averaged in float64, others in
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
        self.factors: dict[Tensor, Tensor] = {}
        self.left_out: dict[Tensor, Tensor] = {}
        self._random = torch.Generator().manual_seed(seed)
        self._model = ModelParameters()
        self._matrices: set[tuple[int, int]] = set()  # in the first step

    def reset(self) -> None:
        """Forgets what has been left out: after a step that was skipped, a jump in the weights, another loss scale.

        The last Qs stay: they are where to look, and no part of a gradient.
        """
        self.left_out.clear()

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
        compresses = self.steps >= self.start_after
        self.steps += bucket.is_last()
        x, group = bucket.buffer(), group_beside(self.group)
        x = x if x.dtype == torch.float64 else x.float()
        if not compresses:
            return lambda: _mean(x, group)
        return self._begin(x, parameters, group)

    def _begin(
        self, x: Tensor, parameters: list[Tensor], group: dist.ProcessGroup
    ) -> Callable[[], Tensor]:
        parts = list(zip(parameters, x.split([p.numel() for p in parameters]), strict=True))
        whole = [part for parameter, part in parts if not self.rank_of(parameter.shape)]
        # In the bucket's own memory: what was left out is added to them there, and there the mean will be.
        low = [p for p in parameters if self.rank_of(p.shape)]
        matrices = [part.view(as_matrix(p.shape)) for p, part in parts if self.rank_of(p.shape)]
        ranks = [self.rank_of(p.shape) for p in low]
        first, second = (x.new_empty(count) for count in self.numbers(p.shape for p in parameters))
        rows = [(m.shape[0], rank) for m, rank in zip(matrices, ranks, strict=True)]
        columns = [(m.shape[1], rank) for m, rank in zip(matrices, ranks, strict=True)]
        vectors, ps = _cut(first, sum(map(len, whole)), rows)
        _, qs = _cut(second, 0, columns)
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
            if not low:
                return x
            bases = [orthonormal(p) if _finite(p) else None for p in ps]
            for matrix, basis, q in zip(matrices, bases, qs, strict=True):
                q.zero_() if basis is None else torch.mm(matrix.t(), basis, out=q)
            _mean(second, group)
            for parameter, matrix, basis, q in zip(low, matrices, bases, qs, strict=True):
                if basis is None or not _finite(q):
                    matrix.fill_(math.nan)
                    continue
                if self.error_feedback:
                    self.left_out[parameter] = torch.addmm(matrix, basis, q.t(), alpha=-1)
                torch.mm(basis, q.t(), out=matrix)
                if self.warm_start:
                    self.factors[parameter] = q
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


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a parameter: the first dim, and all others."""
    return (shape[0], math.prod(shape[1:])) if len(shape) else (1, 1)


def orthonormal(columns: Tensor) -> Tensor:
    """An orthonormal basis, (n, r), of what the columns span. One column of zeros stays zero.

    By Householder's reflections: Gram and Schmidt's way, once through, loses its right angles where columns are nearly
    parallel, and counts the same direction twice.
    """
    tiny = torch.finfo(columns.dtype).tiny
    # squares of large or small numbers have no number
    columns = columns / columns.abs().max().clamp_min(tiny)
    if columns.shape[1] == 1:
        return columns / columns.norm().clamp_min(tiny)
    return torch.linalg.qr(columns).Q


def _mean(x: Tensor, group: Group) -> Tensor:
    x /= dist.get_world_size(group)
    dist.all_reduce(x, group=group)
    return x


def _finite(x: Tensor) -> bool:
    return bool(torch.stack(x.aminmax()).isfinite().all())


def _cut(
    flat: Tensor, begin: int, shapes: Sequence[tuple[int, int]]
) -> tuple[Tensor, list[Tensor]]:
    """A flat tensor as a vector of `begin` numbers, and matrices of those shapes behind it."""
    head, *parts = flat.split([begin, *(n * m for n, m in shapes)])
    return head, [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
