"""Traffic and events know the axis of the mesh that they went over."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dtcourse import launch
from dtcourse.collectives import mesh_axes, p2p, ring, traffic
from dtcourse.collectives.counted import Row, Traffic

X = 12  # elements


def on_both_axes(sizes=(2, 2)):
    """A sum over tp, a message along dp, a ring's sum called by us over dp, and a sum over all ranks."""
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp")[-len(sizes) :])
    x = torch.ones(X)
    for _ in range(2):
        with traffic.phase("step"):
            dist.all_reduce(x, group=mesh.get_group("tp"))
            if len(sizes) == 2:
                group = mesh.get_group("dp")
                p2p.exchange(x, 1 - p2p.rank(group), torch.empty(X), 1 - p2p.rank(group), group)
                ring.all_reduce(x, group=group)
    with traffic.phase("once"):
        dist.all_reduce(x)


def test_messages_are_laid_to_the_axis_whose_group_they_went_over():
    run = launch(on_both_axes, 4, backend="ring", record=True)
    one = X * 4  # a ring of two: each sends half, and half again
    formula = {
        ("tp", "all_reduce"): 4 * one,
        ("dp", "send"): 4 * one,
        ("dp", "all_reduce"): 4 * one,
    }
    lines = run.traffic.by_axis(phase="step", steps=2, formula=formula)
    assert [tuple(line.values()) for line in lines] == [
        ("dp", "all_reduce", 4, 8, 4 * one, 4 * one, 1.0),
        ("dp", "send", 4, 4, 4 * one, 4 * one, 1.0),
        ("tp", "all_reduce", 4, 8, 4 * one, 4 * one, 1.0),
    ]
    assert run.traffic.axes == ["tp", "dp"]
    assert run.traffic.bytes_sent(axis="tp") == run.traffic.bytes_received(axis="tp") == 8 * one
    (over_none,) = run.traffic.by_axis(phase="once")
    assert (over_none["axis"], over_none["bytes"]) == ("no axis", 6 * one)
    matrices = run.traffic.matrices(phase="step")
    assert matrices["tp"] == [[0, 96, 0, 0], [96, 0, 0, 0], [0, 0, 0, 96], [0, 0, 96, 0]]
    assert matrices["dp"] == [[0, 0, 192, 0], [0, 0, 0, 192], [192, 0, 0, 0], [0, 192, 0, 0]]
    axes = [
        (e.name, e.detail.get("axis"))
        for e in run.timeline.of(rank=0, lane="collectives")
        if e.detail["phase"] == "step"
    ]
    assert axes == 2 * [("all_reduce", "tp"), ("all_reduce", "dp")]
    messages = run.timeline.of(rank=0, name="send", lane="messages")
    found = {e.detail.get("axis") for e in messages if e.detail["phase"] == "step"}
    assert found == {"tp", "dp"}


def test_so_is_the_volume_of_torchs_own_backend():
    run = launch(on_both_axes, 4, backend="gloo", record=True, device="cpu")
    lines = run.traffic.by_axis(phase="step", steps=2)
    found = {(line["axis"], line["operation"]): line["algorithmic bytes"] for line in lines}
    assert found["tp", "all_reduce"] == found["dp", "send"] == 4 * X * 4
    axes = {e.detail.get("axis") for e in run.timeline.of(lane="collectives")}
    assert {"tp", None} <= axes


def one_axis(named):
    """torch takes the default group for an axis over all ranks."""
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    if named:
        mesh_axes.name(mesh.get_group("tp"), "tp")
    dist.all_reduce(torch.ones(X), group=mesh.get_group("tp"))


@pytest.mark.parametrize("named", [False, True])
def test_an_axis_over_all_ranks_is_named_by_whoever_knows_it(named):
    run = launch(one_axis, 2, named, backend="ring", record=True)
    assert run.traffic.axes == ["tp"] * named


ROWS = [
    Row(0, "all_reduce", "step", "sent", 1, 2, 300, "tp"),
    Row(1, "all_reduce", "step", "sent", 0, 2, 300, "tp"),
    Row(0, "send", "first", "sent", 1, 1, 8, ""),
]


def test_the_table_is_read():
    shown = str(Traffic(ROWS).by_axis(formula={("tp", "all_reduce"): 800, ("pp", "send"): 1000}))
    assert shown.splitlines() == [
        "axis     operation   pairs  messages  bytes  formula  ratio",
        "no axis  send            1         1      8        0    nan",
        "pp       send            0         0      0    1,000      0",
        "tp       all_reduce      2         4    600      800   0.75",
    ]
    assert str(Traffic().by_axis()) == "no traffic"


def test_steps_that_are_not_equal_are_refused():
    with pytest.raises(ValueError, match=r"1 messages of send on no axis are not those of 2 equal"):
        Traffic(ROWS).by_axis(steps=2)
    assert [line["bytes"] for line in Traffic(ROWS).by_axis(phase="step", steps=2)] == [300]
    with pytest.raises(ValueError, match="at least 1; got 0"):
        Traffic(ROWS).by_axis(steps=0)
