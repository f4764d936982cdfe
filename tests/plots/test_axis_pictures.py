"""The matrix of senders and receivers: whose bars are where, how long, and told apart without colour."""

from __future__ import annotations

import pytest

from dtcourse import plots
from dtcourse.plots import style
from dtcourse.plots.axis_pictures import LOOKS

TP, PP = [[0, 40], [20, 0]], [[0, 10], [0, 0]]


def bars(picture):
    """(row, column, colour, width) of each bar: it has a hatching or the full colour, and its stripe is lighter."""
    picture.draw_without_rendering()
    found = []
    for patch in picture.axes[0].patches:
        color = style.hex_of(patch.get_facecolor())
        if color in {style.hex_of(look) for look, _ in LOOKS.values()}:
            row, column = round(patch.get_y()), round(patch.get_x() + 0.4)
            found.append((row, column, color, patch.get_width()))
    return found


def test_a_bar_is_as_long_as_its_bytes_and_in_its_axis_colour():
    found = bars(plots.traffic_by_axis({"tp": TP, "pp": PP}))
    longest = max(width for *_, width in found)
    shares = {(row, column, color): width / longest for row, column, color, width in found}
    tp, pp = style.hex_of(LOOKS["tp"][0]), style.hex_of(LOOKS["pp"][0])
    assert shares == {(0, 1, tp): 1, (0, 1, pp): pytest.approx(0.25), (1, 0, tp): 0.5}


def test_axes_differ_without_colour():
    assert len({hatch for _, hatch in LOOKS.values()}) == len(LOOKS)


def test_a_node_is_framed():
    four = [[int(i != j) for j in range(4)] for i in range(4)]
    lines = plots.traffic_by_axis({"tp": four}, node_size=2).axes[0].get_lines()
    thick = [line.get_xdata()[0] for line in lines if line.get_linewidth() > 2]
    assert {-0.5, 1.5, 3.5} <= {*thick} and 0.5 not in thick


@pytest.mark.parametrize("values", [[[0, 1]], [[0, 9, float("nan")]], [[-1, 3]]])
def test_the_colour_bar_of_whole_numbers_has_whole_numbers(values):
    _, bar = plots.heatmap(values).axes
    low, high = bar.get_ylim()
    marks = [mark for mark in bar.get_yticks() if low <= mark <= high]
    assert len(marks) >= 2 and all(mark == int(mark) for mark in marks)


@pytest.mark.parametrize(
    ("matrices", "more", "said"),
    [
        ({"tp": [[0, 1]]}, {}, r"a row and a column for each rank; tp: \(1, 2\)"),
        ({"tp": TP, "pp": [[0]]}, {}, r"tp: \(2, 2\), pp: \(1, 1\)"),
        ({"tp": [[0, 0], [0, 0]]}, {}, "no axis sends anything"),
        ({}, {}, "no axis sends anything"),
        ({"tp": TP}, {"node_size": 3}, "node_size is 1 to 2, the ranks; got 3"),
    ],
)
def test_mistakes_are_named(matrices, more, said):
    with pytest.raises(ValueError, match=said):
        plots.traffic_by_axis(matrices, **more)
