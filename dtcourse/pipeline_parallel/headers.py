"""What is said of a tensor before it comes: whether one comes at all, its shape and dtype,
whether a gradient is to come back.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from dtcourse.plural import plural

_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)
_MOST_DIMS = 8
MOST_TENSORS = 32  # that one stage passes to the next
LENGTH = 4 + _MOST_DIMS  # numbers in a header


class Form(NamedTuple):
    """A tensor without its values. Activations that need no gradient (a mask, positions) say so."""

    shape: torch.Size
    dtype: torch.dtype
    needs_gradient: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Form:
        """A tensor's."""
        return cls(tensor.shape, tensor.dtype, tensor.requires_grad)

    def __str__(self) -> str:
        return f"{list(self.shape)} {self.dtype}" + (
            " (needs a gradient)" if self.needs_gradient else ""
        )


def write(form: Form, count: int) -> torch.Tensor:
    """A header: a tensor's form, and how many tensors come with it, itself included.

    Raises ValueError if there are more tensors, dims or dtypes than a header has room for.
    """
    shape, dtype, needs_gradient = form
    if dtype not in _DTYPES or len(shape) > _MOST_DIMS or count > MOST_TENSORS:
        raise ValueError(
            f"A stage sends at most {MOST_TENSORS} tensors, each of at most {_MOST_DIMS} dims and a common dtype; "
            f"got {plural(count, 'tensor')}, {dtype}, {plural(len(shape), 'dim')}."
        )
    sizes = [*shape] + [0] * (_MOST_DIMS - len(shape))
    return torch.tensor([count, needs_gradient, _DTYPES.index(dtype), len(shape), *sizes])


def read(header: torch.Tensor) -> tuple[int, Form]:
    """How many tensors come, and the form of this one; no tensor at all is a refusal (refusals.py)."""
    count, needs_gradient, dtype, dims, *sizes = header.tolist()
    return count, Form(torch.Size(sizes[:dims]), _DTYPES[dtype], bool(needs_gradient))


def empty() -> torch.Tensor:
    """A header that has still to come; as it is, it says that nothing comes."""
    return torch.zeros(LENGTH, dtype=torch.int64)
