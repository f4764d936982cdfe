"""FLOPs and bytes of torch's operations, against arithmetic by hand and against torch's own counter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from dtcourse.emulation import EmulatedDevice
from dtcourse.emulation.clock import VirtualClock
from dtcourse.emulation.counting import CountOperations


def seconds(run, *, flops=float("inf"), bandwidth=float("inf")):
    """Emulated time of run(): with flops=1 its FLOPs, with bandwidth=1 its bytes."""
    clock = VirtualClock()
    with CountOperations(EmulatedDevice(flops, bandwidth), clock, clock.main):
        run()
    assert clock.account().computed == clock.main.time
    return clock.main.time


A, B, V = torch.rand(3, 4), torch.rand(4, 5), torch.rand(4)


@pytest.mark.parametrize(
    ("run", "flops"),
    [
        (lambda: A @ B, 2 * 3 * 4 * 5),
        (lambda: A @ V, 2 * 3 * 4),
        (lambda: A.mv(V), 2 * 3 * 4),
        (lambda: V.dot(V), 2 * 4),
        (lambda: torch.addmv(torch.zeros(3), A, V), 2 * 3 * 4),
        (lambda: torch.addmm(torch.zeros(3, 5), A, B), 2 * 3 * 4 * 5),
        (lambda: torch.zeros(3, 5).addmm_(A, B), 2 * 3 * 4 * 5),
        (lambda: torch.bmm(A.expand(2, 3, 4), B.expand(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
        (lambda: torch.zeros(2, 3, 5).baddbmm_(A.expand(2, 3, 4), B.expand(2, 4, 5)), 240),
        (lambda: F.conv2d(torch.rand(2, 3, 8, 8), torch.rand(5, 3, 3, 3)), 2 * 2 * 5 * 36 * 27),
        (lambda: A + A, 0),
        (lambda: A.T.contiguous(), 0),
        (lambda: A.softmax(-1), 0),
    ],
)
def test_flops_by_hand(run, flops):
    assert seconds(run, flops=1) == flops


def test_linear_is_counted_in_inference_mode_too():
    layer = nn.Linear(4, 5)
    with torch.inference_mode():
        assert seconds(lambda: layer(A), flops=1) == 2 * 3 * 4 * 5


def test_backward_costs_twice_the_forward():
    layer = nn.Linear(4, 5, bias=False)
    x = torch.rand(3, 4, requires_grad=True)
    assert seconds(lambda: layer(x).sum().backward(), flops=1) == 3 * 2 * 3 * 4 * 5


@pytest.mark.parametrize("causal", [False, True])
def test_attention_on_a_cpu_costs_what_torch_counts_elsewhere(causal):
    q, k, v = (torch.rand(2, 3, length, 8, requires_grad=True) for length in (16, 16, 16))
    forward = 2 * 2 * (2 * 3 * 16 * 16 * 8)  # scores, and scores by values
    backward = 5 * 2 * (2 * 3 * 16 * 16 * 8)  # the scores again, and the gradients of both products

    def run():
        F.scaled_dot_product_attention(q, k, v, is_causal=causal).sum().backward()

    assert seconds(run, flops=1) == forward + backward


def test_a_model_costs_what_torchs_counter_counts():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10))
    x = torch.rand(5, 1, 8, 8)
    with FlopCounterMode(display=False) as counter:
        model(x).sum().backward()
    assert seconds(lambda: model(x).sum().backward(), flops=1) == counter.get_total_flops() > 0


X = torch.rand(100)  # 400 bytes


@pytest.mark.parametrize(
    ("run", "nbytes"),
    [
        (lambda: X + 1, 800),
        (lambda: X + X, 1200),
        (lambda: X.add_(1), 800),
        (lambda: X.clone(), 800),
        (lambda: X.to(torch.float64), 1200),
        (lambda: X.sum(), 404),
        (lambda: X.fill_(1), 400),
        (lambda: X.copy_(torch.empty(100)), 800),
        (lambda: torch.add(X, X, out=torch.empty(100)), 1200),
        (lambda: X.view(10, 10).T[2:4], 0),
        (lambda: X.detach().split(10), 0),
        (lambda: torch.empty(1000), 0),
        (lambda: torch.zeros(100), 400),
        (lambda: X[:1].expand(100) + X, 4 + 400 + 400),  # an expanded tensor is stored once
        (lambda: X.sum().item(), 404 + 4),
        (lambda: F.embedding(torch.tensor([1, 2]), torch.empty(1000, 10)), 16 + 80 + 80),
        (lambda: torch._foreach_add([X, X], 1), 1600),
        (lambda: torch._foreach_add_([X, X], [X, X]), 2 * 1200),
        (lambda: torch.ones(100, device="meta") + 1, 0),
    ],
)
def test_bytes_by_hand(run, nbytes):
    assert seconds(run, bandwidth=1) == nbytes


@pytest.mark.parametrize(("how", "passes"), [({"fused": True}, 7), ({"foreach": True}, None)])
def test_an_optimizer_costs_bytes(how, passes):
    """Fused AdamW reads parameter, gradient and two moments and writes three of them."""
    parameter = nn.Parameter(torch.rand(1000))
    parameter.grad = torch.rand(1000)
    optimizer = torch.optim.AdamW([parameter], **how)
    optimizer.step()  # makes the moments
    nbytes = seconds(optimizer.step, bandwidth=1)
    if passes:
        assert nbytes == pytest.approx(passes * 4000, abs=20)  # and the step's count
    else:
        assert nbytes > 2 * 7 * 4000  # each part of the formula goes through memory by itself


def test_the_slower_of_arithmetic_and_memory_counts():
    device = EmulatedDevice(flops=100, bandwidth=10)
    assert device.seconds(200, 10) == 2
    assert device.seconds(100, 30) == 3
    assert device.slower(2).seconds(200, 10) == 4


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"flops": 0}, "flops is in operations per second, above 0; got 0"),
        ({"flops": float("nan")}, "got nan"),
        ({"bandwidth": -1}, "bandwidth is in bytes per second, above 0; got -1"),
        ({"bandwidth": "fast"}, "got 'fast'"),
        ({"flops": True}, "got True"),
    ],
)
def test_what_is_no_device_is_refused(wrong, says):
    with pytest.raises(ValueError, match=says):
        EmulatedDevice(**wrong)
