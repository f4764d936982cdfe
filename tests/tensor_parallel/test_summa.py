"""The layer on a grid: both backward products, in as many bytes as said, with the next panel under way."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch
from dtcourse.collectives import traffic
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork, now, sleep
from dtcourse.profiling.memory_tracker import MemoryTracker
from dtcourse.tensor_parallel import SummaLinear
from dtcourse.verify import compare

ROWS, IN, OUT = 12, 18, 24  # on 1, 2 and 3 rows and columns of ranks


def grid_of(q):
    return init_device_mesh("cpu", (q, q), mesh_dim_names=("row", "column"))


def against_the_whole(q):
    mesh, seen = grid_of(q), {}
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 5, IN, dtype=torch.double, generator=generator)
    for bias in (True, False):
        for dtype, tolerance in ((torch.double, 1e-10), (torch.float32, 1e-5)):
            torch.manual_seed(0)
            first = nn.Linear(IN, OUT, bias=bias, dtype=dtype)
            second = nn.Linear(OUT, IN, bias=bias, dtype=dtype)
            layers = SummaLinear(first, mesh), SummaLinear(second, mesh)
            grid = layers[0].grid
            mine, whole = (x.to(dtype).requires_grad_() for _ in range(2))
            y = grid.join(layers[1](torch.tanh(layers[0](grid.cut(mine)))))
            right = second(torch.tanh(first(whole)))
            for out in (y, right):
                (out**3).sum().backward()
            got, expected = {"y": y, "x": mine.grad}, {"y": right, "x": whole.grad}
            for n, (layer, plain) in enumerate(zip(layers, (first, second), strict=True)):
                assert torch.equal(layer.full_weight(layer.weight), plain.weight)
                got[f"{n}.weight"] = layer.full_weight(layer.weight.grad)
                expected[f"{n}.weight"] = plain.weight.grad
                if bias:
                    got[f"{n}.bias"] = layer.full_bias(layer.bias.grad)
                    expected[f"{n}.bias"] = plain.bias.grad
            seen[bias, dtype] = compare(got, expected, tolerance, norm=2)
            assert layers[0].weight.untyped_storage().nbytes() * q * q == first.weight.nbytes

    frozen = nn.Linear(IN, OUT)
    frozen.requires_grad_(False)
    layer = SummaLinear(frozen, mesh)
    mine = x.float().requires_grad_()
    layer(layer.grid.cut(mine)).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is None
    return len(seen)


@pytest.mark.parametrize("q", [1, 2, 3])
def test_gradients_equal_one_process(q):
    assert list(launch(against_the_whole, q * q, q)) == [4] * q * q


def cost():
    mesh = grid_of(2)
    layer = SummaLinear(nn.Linear(IN, OUT, bias=False), mesh)
    x = torch.randn(ROWS // 2, IN // 2, requires_grad=True)
    with MemoryTracker(layer, inputs=[x]) as tracker, traffic.counting() as counted:
        y = layer(x)
        forward = counted.bytes_sent(), counted.messages_sent()
    in_forward = tracker.peak.bytes
    with MemoryTracker(layer, inputs=[x, y]) as tracker:
        with traffic.counting() as backward:
            y.backward(torch.ones_like(y))
    return forward, in_forward, backward.bytes_sent(), tracker.peak.bytes


def test_bytes_and_panels_are_the_formula():
    x, w, y = ROWS * IN, IN * OUT, ROWS * OUT  # bytes of a block: four blocks, of 4 bytes a number
    for (sent, messages), _, back, _ in launch(cost, 4, backend="ring"):
        assert (sent, messages) == (x + w, 2), "each block once to its neighbour"
        assert back == 2 * (x + w)
    # the ring's reductions are tensors, too; gloo's are not
    for rank, (_, peak, _, backward_peak) in enumerate(launch(cost, 4)):
        assert peak == (x + w + y) + (x + w), "what is held, and the other's panel of each"
        # x, W, y and dy are there, then dx, dW and the part of another rank's dW; and the other's panel of x, which a
        # rank of the first column has last.
        assert backward_peak == (x + w + 2 * y) + x + w + w + (x if rank % 2 == 0 else 0)


def seconds(rows, q=3):
    """On a rank: a forward's, a backward's, and those that the first panels of both operands take."""
    layer = SummaLinear(nn.Linear(IN, OUT, bias=False), grid_of(q))
    x = torch.randn(rows // q, IN // q, requires_grad=True)
    panels = layer.grid.panels_of_row(x), layer.grid.panels_of_column(layer.weight)
    whole = layer(x)
    steps = (lambda: [next(p) for p in panels], lambda: layer(x), lambda: whole.backward(whole))
    found = []
    for step in steps:
        # All ranks from one moment.
        sleep(len(found) + 1 - now())
        step()
        found.append(now() - len(found) - 1)
    return found


def test_panels_and_sums_are_under_way_while_others_are_multiplied():
    q, rows, flops = 3, 180, 1e7
    product = 2 * (rows // q) * (IN // q) * (OUT // q) / flops
    cluster = {"devices": EmulatedDevice(flops), "network": EmulatedNetwork(1e-5, 1e7)}
    run = launch(seconds, q * q, rows, device="cpu", backend="ring", **cluster)
    first, forward, backward = (max(one) for one in zip(*run, strict=True))
    assert first > product / 5
    assert forward == pytest.approx(q * product + first), "waiting for each panel: q times first"
    assert backward < 2 * q * product + 1.6 * first, "waiting for each panel and sum: 2 q times"


def mistakes():
    said = []
    line, flat = init_device_mesh("cpu", (4,)), init_device_mesh("cpu", (1, 4))
    for make in (
        lambda: SummaLinear(nn.Linear(4, 4), line),
        lambda: SummaLinear(nn.Linear(4, 4), flat),
        lambda: SummaLinear(nn.Linear(5, 4), grid_of(2)),
        lambda: SummaLinear(nn.Linear(4, 7), grid_of(2)),
        lambda: SummaLinear(nn.Linear(4, 4), grid_of(2))(torch.ones(2, 4)),
    ):
        try:
            make()
        except ValueError as error:
            said.append(str(error))
    assert dist.get_world_size() == 4
    return said


def test_mistakes_are_named():
    for line, flat, inputs, outputs, x in launch(mistakes, 4):
        assert "this mesh is 4" in line
        assert "this mesh is 1 x 4" in flat
        assert "5, cannot be cut over 2 ranks" in inputs
        assert "7, cannot be cut over 2 ranks" in outputs
        assert "x has 4 columns" in x
