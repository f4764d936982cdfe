"""One grouped product: a loop's numbers and gradients, however rows are grouped, and not one operation more."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dtcourse import launch, streams
from dtcourse.emulation import EmulatedDevice
from dtcourse.grouped_mm import grouped_mm
from dtcourse.verify import compare

LOADS = {
    "uneven": [5, 0, 9, 2, 0],
    "equal": [4, 4, 4, 4, 4],
    "one has all": [0, 0, 16, 0, 0],
    "nobody has any": [0, 0, 0, 0, 0],
}


def loop(x, w, counts):
    return torch.cat([rows @ w[e] for e, rows in enumerate(x.split(counts.tolist()))])


def gradients(product, x, w, counts):
    x, w = (t.clone().requires_grad_() for t in (x, w))
    y = product(x, w, counts)
    y.square().sum().backward()
    return {"y": y.detach(), "x": x.grad, "w": w.grad}


# What F.grouped_mm takes on a CPU, and what it does not: double precision, and rows that are not whole 16 bytes.
@pytest.mark.parametrize(
    ("dtype", "D", "width", "tolerance"),
    [
        (torch.double, 8, 12, 1e-14),
        (torch.float32, 8, 12, 1e-6),
        (torch.float32, 7, 5, 1e-6),
        (torch.bfloat16, 8, 16, 0.02),
    ],
)  # fmt: skip
@pytest.mark.parametrize("load", LOADS)
def test_it_is_the_loop_over_groups(load, dtype, D, width, tolerance):
    torch.manual_seed(0)
    counts = torch.tensor(LOADS[load])
    x = torch.randn(int(counts.sum()), D, dtype=torch.double)
    w = torch.randn(len(counts), D, width, dtype=torch.double)
    mine = gradients(grouped_mm, x.to(dtype), w.to(dtype), counts)
    assert {t.dtype for t in mine.values()} == {dtype}
    right = gradients(loop, x.to(dtype).double(), w.to(dtype).double(), counts)
    compare(mine, right, tolerance, norm=2)
    # The gradient of a plain sum has strides of zero.
    x = x.to(dtype).requires_grad_()
    grouped_mm(x, w.to(dtype), counts).sum().backward()
    sums = torch.cat([w[e].sum(1).expand(n, -1) for e, n in enumerate(counts.tolist())])
    compare({"x": x.grad}, {"x": sums}, tolerance, norm=2)


@pytest.mark.parametrize("load", ["uneven", "equal"])
def test_gradients_of_gradients(load):
    counts = torch.tensor(LOADS[load])
    x = torch.randn(int(counts.sum()), 3, dtype=torch.double, requires_grad=True)
    w = torch.randn(len(counts), 3, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x, w: grouped_mm(x, w, counts), (x, w))


@pytest.mark.parametrize("load", ["uneven", "equal"])
def test_gradients_of_gradients_in_single_precision_however_they_are_laid_out(load):
    torch.manual_seed(0)
    counts = torch.tensor(LOADS[load])
    x = torch.randn(int(counts.sum()), 8, requires_grad=True)
    w = torch.randn(len(counts), 8, 12, requires_grad=True)
    found = []
    for product in (grouped_mm, loop):
        first = torch.autograd.grad(product(x, w, counts).square().sum(), (x, w), create_graph=True)
        plain = torch.autograd.grad(sum(g.sum() for g in first), (x, w), retain_graph=True)
        turned = torch.autograd.grad((first[0].T.contiguous() ** 3).sum(), (x, w))
        found.append(dict(zip("abcd", plain + turned, strict=True)))
    compare(found[0], found[1], 1e-6, norm=2)


@pytest.mark.parametrize("dtype", [torch.double, torch.float32])
@pytest.mark.parametrize("load", ["uneven", "equal", "one has all"])
def test_no_padding_is_computed_and_all_of_it_counted(load, dtype):
    counts = torch.tensor(LOADS[load])
    R, E, D, width = int(counts.sum()), len(counts), 8, 12
    x = torch.randn(R, D, dtype=dtype, requires_grad=True)
    w = torch.randn(E, D, width, dtype=dtype, requires_grad=True)
    with FlopCounterMode(display=False) as counted:
        y = grouped_mm(x, w, counts)
        forward = counted.get_total_flops()
        y.sum().backward()
    assert forward == 2 * R * D * width
    assert counted.get_total_flops() == 3 * forward


def test_autocast_multiplies_in_its_dtype():
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(2, 8, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = grouped_mm(x, w, torch.tensor([1, 3]))
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert x.grad.dtype == w.grad.dtype == torch.float32


@pytest.mark.parametrize("load", ["uneven", "equal"])
def test_counts_of_a_gpu_are_not_read_by_the_host(load, monkeypatch):
    """As on a GPU, and F.grouped_mm of a CPU in the place of its kernel."""
    counts = torch.tensor(LOADS[load])
    x, w = torch.randn(int(counts.sum()), 8), torch.randn(len(counts), 8, 12)
    right = gradients(loop, x, w, counts)
    monkeypatch.setattr(streams, "may_look", lambda x: False)
    for name in ("tolist", "item", "__int__", "__bool__", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, None, raising=False)
    mine = gradients(grouped_mm, x, w, counts)
    monkeypatch.undo()
    compare(mine, right, 1e-6, norm=2)


def test_counts_that_do_not_fit_are_found_later_on_a_gpu(monkeypatch):
    monkeypatch.setattr(streams, "may_look", lambda x: False)
    with pytest.raises(RuntimeError, match="groups do not add up to 4 rows"):
        grouped_mm(torch.zeros(4, 8), torch.zeros(2, 8, 8), torch.tensor([2, 3]))


def test_counts_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="3 groups of rows, and 2 matrices"):
        grouped_mm(torch.zeros(6, 2), torch.zeros(2, 2, 2), torch.tensor([1, 2, 3]))
    with pytest.raises(ValueError, match="2 groups of 5 rows together, and there are 6 rows"):
        grouped_mm(torch.zeros(6, 2), torch.zeros(2, 2, 2), torch.tensor([2, 3]))


def emulated_product():
    from dtcourse import emulation

    grouped_mm(torch.ones(4, 8), torch.ones(2, 8, 16), torch.tensor([1, 3]))
    return emulation.account().computed


def test_an_emulated_device_takes_its_time_for_all_of_it():
    emulated = EmulatedDevice(flops=2 * 4 * 8 * 16)
    assert launch(emulated_product, 1, devices=emulated, init=False)[0] == 1.0
