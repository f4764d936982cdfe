"""A tensor's bytes: the same whatever strides it has, and taken in one way by all who hash, pack and send them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from dtcourse.compression import Payload
from dtcourse.compression.compressor import to_bytes
from dtcourse.fault_tolerance.fingerprints import digest
from dtcourse.fault_tolerance.packed import pack, unpack
from dtcourse.parameters.checksum import checksum
from dtcourse.tensor_bytes import as_bytes
from tests.conftest import ROOT

# Of one element, which PyTorch calls contiguous whatever its strides are; and others that lie in memory in another way.
ODD = {
    "a column of a batch of one": torch.arange(5.0)[None][:, 2],
    "of the last row": torch.arange(12.0).view(4, 3)[-1:, 1],
    "one by one": torch.arange(9.0, dtype=torch.float64).view(3, 3)[1:2, 1:2],
    "a real part": torch.tensor([1 + 2j]).real,
    "an imaginary part": torch.tensor([1 + 2j]).conj().imag,
    "bfloat16": torch.ones(2, 3).bfloat16()[:1, 1],
    "bool": torch.ones(2, 3, dtype=torch.bool)[:1, 1],
    "no dim": torch.arange(9.0).view(3, 3)[1, 1],
    "every second": torch.arange(6.0)[::2],
    "transposed": torch.arange(6.0).view(2, 3).t(),
    "expanded": torch.tensor(3.0).expand(4),
    "conjugate": torch.tensor([1 + 2j, 3 - 1j]).conj(),
    "none": torch.empty(0, 3)[:, 1],
}
each = pytest.mark.parametrize("tensor", ODD.values(), ids=list(ODD))


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in memory of their own, by way of Python."""
    return torch.tensor(tensor.tolist(), dtype=tensor.dtype).view(tensor.shape)


@each
def test_bytes_are_those_of_the_numbers_and_not_of_their_places(tensor):
    assert as_bytes(tensor).numpy().tobytes() == bytes(plain(tensor).untyped_storage())


def test_what_lies_in_order_is_not_copied():
    x = torch.arange(6.0)
    as_bytes(x[2:])[0] = 1
    assert x[2] != 2.0


@each
def test_all_who_take_bytes_take_these(tensor):
    same = plain(tensor)
    assert checksum(tensor) == checksum(same)
    assert digest({"x": tensor}) == digest({"x": same})
    (back,) = unpack(*pack([tensor]))
    assert torch.equal(back, same)
    if tensor.dim() == 1:  # what a compressor sends is a vector
        assert torch.equal(to_bytes(Payload((tensor,), len(tensor))), as_bytes(same))


def test_nobody_takes_them_in_another_way():
    """`contiguous()` before `view(torch.uint8)` looks right, and is not for one element."""
    other = re.compile(
        r"(contiguous|flatten|reshape|clone)\([^)\n]*\)[.\w()-]*\.view\(torch\.uint8\)"
    )
    found = [
        f"{path.relative_to(ROOT)}: {hit.group()}"
        for path in sorted((ROOT / "dtcourse").rglob("*.py"))
        for hit in other.finditer(path.read_text())
        if path.name != "tensor_bytes.py"
    ]
    assert not found


def test_what_would_have_to_be_run_to_be_read_again_is_not_packed():
    said = re.escape("numpy._core.multiarray.scalar would have to be called. Nothing was sent")
    with pytest.raises(ValueError, match=f"a checkpoint keeps tensors, numbers, strings .*{said}$"):
        pack({"best": np.float64(0.5), "weight": torch.ones(2)})
