"""Tensors that are shapes alone beside whole numbers that are real: what one rank of thousands is traced on.

FakeTensorMode makes every tensor a fake one, the small ones too by which a program decides: ranks on a mesh, seeds,
headers, sizes of messages. Reading one of those raises. So here another mode says what becomes a fake tensor:

    floating-point memory      empty, zeros, ones, randn, ...: a shape, a dtype, a device
    what a fake tensor goes into        fake as well; real tensors go in as the shapes that they are
    all else                   real: tokens, positions, masks, counts, ranks, seeds

No FakeTensorMode is entered but for the operation that makes a fake tensor. So DTensor, which works out shapes with one
of its own, and only once for each operation, does just that; inside of another's it would do so each time, and what
looks at all operations would count tensors as large as all ranks' parts together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dtcourse.torch_private.operations import DEVICE_OF, packet_of, schema_of
from dtcourse.torch_private.tensors import is_fake, is_plain

MOST = 1 << 22  # elements up to which whole numbers are real: 32 MiB of int64
# What is made of whole numbers, whichever dtype it has, or is of whole numbers where no dtype is said.
_COUNTING = frozenset({"arange", "linspace", "randint", "randperm", "tril_indices", "triu_indices"})
_KEY = torch._C._TorchDispatchModeKey.FAKE


@contextmanager
def without_values() -> Iterator[None]:
    """A context in which floating-point tensors have shapes alone, and small whole numbers have values."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # its import takes a while

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    # It remembers by weak references what it made of which tensor on the meta device, and nobody here asks again: a
    # parameter that has one cannot be converted (module.double(), .to(torch.bfloat16)).
    fake.fake_tensor_converter.set_tensor_memo = lambda *_: None  # type: ignore[method-assign]
    with FakeFloats(fake):
        yield


def needs_values(error: BaseException) -> bool:
    """Whether an error says that a value, or a shape that depends on one, was asked of a fake tensor."""
    kinds = ("DataDependentOutputException", "DynamicOutputShapeException")
    return type(error).__name__ in kinds or "got FakeTensor" in str(error)  # tolist()


class FakeFloats(TorchDispatchMode):
    """Makes floating-point memory of the FakeTensorMode `fake`, and computes for real what no fake tensor goes into.

    Raises ValueError where what is fake would be written into a real tensor: its values would be wrong from there on.
    """

    def __init__(self, fake: Any) -> None:
        super().__init__()
        self._fake = fake

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is DEVICE_OF:
            return args[0].fake_device
        kwargs = kwargs or {}
        if torch._C._get_dispatch_mode(_KEY) is not None:  # DTensor's own
            return func(*args, **kwargs)
        if types:
            if not all(is_plain(kind) or is_fake(kind) for kind in types):
                return NotImplemented  # a DTensor: it comes back as operations on this rank's part
            if schema_of(func).is_mutable and any(map(is_fake, types)):
                _check_writes(func, args, kwargs)
            return func(*args, **kwargs)
        given = any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args, kwargs)))
        if given or _counts(func, args, kwargs):
            return func(*args, **kwargs)
        with self._fake:
            return func(*args, **kwargs)


def _counts(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an operation that no tensor goes into makes whole numbers, and few enough."""
    where = kwargs.get("device")
    if where is not None and torch.device(where).type == "meta":
        return False
    sizes = [value for value in args if isinstance(value, (list, tuple))]
    if sizes and prod(sizes[0]) > MOST:
        return False
    name, dtype = packet_of(func).__name__, kwargs.get("dtype")
    if name in _COUNTING:
        return True
    if dtype is None:
        return name == "full" and isinstance(args[1], int)
    return not (dtype.is_floating_point or dtype.is_complex)


def _check_writes(func: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """An operation with a fake input changes fake tensors alone."""
    for place, argument in enumerate(schema_of(func).arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        for tensor in tree_leaves(value):
            if isinstance(tensor, torch.Tensor) and not is_fake(type(tensor)):
                raise ValueError(
                    f"{func} writes what has no values into a tensor that has, of shape {tuple(tensor.shape)} and "
                    f"{tensor.dtype}: make that one of the dtype or by the operation that it gets its values of"
                )
