"""On the virtual clock the measured roofs are the planted ones, and each operator lies on its roof."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dtcourse import launch
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork
from dtcourse.profiling.operators import Counted, Operator, count
from dtcourse.profiling.roofline import Machine, measured_machine, roofline

FLOPS, BANDWIDTH = 1e11, 1e10


def placed():
    machine = measured_machine(size=256, nbytes=1 << 16, repeats=1, link_repeats=1)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    x = torch.rand(512, 64)
    counted = count(lambda: model(x).square().sum().backward(), timed=True)
    return roofline(counted, machine, sent=4 * 1000)


def test_planted_roofs_are_found_and_operators_lie_on_them():
    found = launch(
        placed, 2, backend="ring", clock="virtual", device="cpu",
        devices=EmulatedDevice(FLOPS, BANDWIDTH), network=EmulatedNetwork(1e-5, 1e9, gap=1e-6),
    )[1]  # fmt: skip
    machine = found.machine
    assert (machine.flops, machine.bandwidth) == pytest.approx((FLOPS, BANDWIDTH), rel=1e-6)
    link = machine.link
    assert (link.alpha, link.gap, link.beta) == pytest.approx((1e-5, 1e-6, 1e-9), rel=1e-6)
    assert found.link_seconds == pytest.approx(4e-6)
    for each in found.operators:
        assert each.of_roof == pytest.approx(1, rel=1e-6), each
    bounds = {each.operator.name: each.bound for each in found.operators}
    assert bounds["aten.gelu"] == "memory" and bounds["aten.addmm"] == "arithmetic"
    assert 0 < found.share("memory") < 1
    assert found.share("memory") + found.share("arithmetic") == pytest.approx(1)
    times = [row["ms"] for row in found.rows()]
    assert times == sorted(times, reverse=True)


def test_this_machine_has_roofs():
    machine = measured_machine(size=128, nbytes=1 << 20, repeats=2)
    assert machine.flops > 0 and machine.bandwidth > 0 and machine.link is None
    assert machine.attainable(machine.ridge / 2) == pytest.approx(machine.flops / 2)
    assert machine.attainable(machine.ridge * 2) == machine.flops


def test_what_cannot_be_placed_is_refused():
    machine = Machine(FLOPS, BANDWIDTH)
    untimed = Counted((Operator("aten.mm", ((2, 2), (2, 2)), 1, 16, 0, 48),))
    with pytest.raises(ValueError, match=r"aten.mm 2x2 2x2 has no time: count\(step, timed=True\)"):
        roofline(untimed, machine)
    with pytest.raises(ValueError, match="there are no operators"):
        roofline(Counted(()), machine)
    with pytest.raises(ValueError, match="sent is in bytes, 0 or more; got -1"):
        roofline(untimed, machine, sent=-1)
    timed = Counted((Operator("aten.mm", (), 1, 16, 0, 48, 1.0),))
    with pytest.raises(ValueError, match="has no link"):
        _ = roofline(timed, machine, sent=4).link_seconds
    with pytest.raises(ValueError, match="got 'link'"):
        roofline(timed, machine).share("link")
    with pytest.raises(ValueError, match="flops=0 and bandwidth=1"):
        Machine(0, 1)
    with pytest.raises(ValueError, match="at least 1; got 0, "):
        measured_machine(size=0)
