"""The order of slices: a queue by priority against one that is simulated tick by tick,
and the gain that it promises."""

from __future__ import annotations

import math
import random

import pytest

from dtcourse.communication_scheduling import (
    Slice,
    arrivals,
    expected_gain,
    send_order,
    step_seconds,
)


def of_layers(ready, pieces, seconds=1.0):
    """Layers cut into pieces of one byte each; layer 0 is the most urgent."""
    return [
        Slice(layer, piece, piece + 1, 1, ready[layer], layer, seconds)
        for layer in range(len(ready))
        for piece in range(pieces[layer])
    ]


def test_an_urgent_slice_overtakes_what_is_not_handed_over_yet():
    slices = of_layers(ready=[2.0, 1.0], pieces=[2, 2])  # the docstring's picture
    names = [f"{s.layer}.{s.start}" for s in (slices[i] for i in send_order(slices, 1))]
    assert names == ["1.0", "0.0", "0.1", "1.1"]
    # With a credit of two slices the second one has left already; with any, first in is first out.
    for credit in (2, math.inf):
        order = send_order(slices, credit)
        assert [slices[i].layer for i in order] == [1, 1, 0, 0]


def ticks(slices):
    """When each layer's last slice has arrived: in each unit of time the most urgent ready slice is carried."""
    left, now, arrived = list(range(len(slices))), 0, {}
    while left:
        ready = [i for i in left if slices[i].ready <= now]
        now += 1
        if ready:
            chosen = min(ready, key=lambda i: (slices[i].urgency, i))
            left.remove(chosen)
            arrived[slices[chosen].layer] = now
    return arrived


@pytest.mark.parametrize("seed", range(20))
def test_it_is_the_schedule_that_carries_the_most_urgent_slice_in_every_tick(seed):
    draw = random.Random(seed)
    layers = draw.randint(1, 6)
    ready = [float(draw.randint(0, 12)) for _ in range(layers)]
    slices = of_layers(ready, [draw.randint(1, 4) for _ in range(layers)])
    order = send_order(slices, 1)
    assert sorted(order) == list(range(len(slices)))
    assert arrivals(slices, order) == ticks(slices)


def test_a_slice_that_is_ready_a_rounding_later_is_waited_for():
    slices = of_layers(ready=[1.0 + 1e-12, 0.0], pieces=[1, 3])
    assert [slices[i].layer for i in send_order(slices, 1)] == [1, 0, 1, 1]


@pytest.mark.parametrize("layers", [1, 2, 7])
@pytest.mark.parametrize(
    ("f", "b", "pieces"), [(1, 1, 1), (1, 1, 2), (1, 1, 4), (3, 1, 2), (1, 2, 5), (2, 4, 3)]
)
def test_the_gain_is_that_of_the_two_schedules(layers, f, b, pieces):
    """f, b and c = `pieces` in ticks: slices of one tick, so that nothing is lost at their borders."""
    ready = [float(b * (layers - i)) for i in range(layers)]
    slices = of_layers(ready, [pieces] * layers)
    seconds = []
    for credit in (math.inf, 1):
        arrived = arrivals(slices, send_order(slices, credit))
        there = [arrived[i] for i in range(layers)]
        seconds.append(step_seconds(there, [f] * layers, backward_end=b * layers))
    assert seconds[0] - seconds[1] == expected_gain(layers, f, b, pieces)
    assert seconds[0] == b * layers + pieces + f * layers + max(0, pieces - b) * (layers - 1)


def test_what_is_no_model_is_refused():
    with pytest.raises(ValueError, match=r"1 layer or more.*num_layers=0"):
        expected_gain(0, 1, 1, 1)
    with pytest.raises(ValueError, match="communication=-1"):
        expected_gain(3, 1, 1, -1)
