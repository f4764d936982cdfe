"""Schedules and what they store: every box in its place and colour, kinds told apart by anybody, idle time counted."""

import itertools

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.text import Annotation

from dtcourse import plots
from dtcourse.events import Event, HasTimeline, Timeline
from dtcourse.plots import style
from dtcourse.plots.schedule_pictures import boxes_of, idle_shares
from tests.plots.test_style import VISION, lab


def event(
    rank: int, start: float, end: float, action: str, micro_batch: int = 0, stage: int | None = None
) -> Event:
    detail = {
        "action": action,
        "micro_batch": micro_batch,
        "stage": rank if stage is None else stage,
    }
    return Event(f"{action} {micro_batch}", "compute", rank, start, end, detail=detail)


# Two ranks from second 5 on; rank 0 holds stages 0 and 3.
EVENTS = [
    event(0, 5, 6, "forward"),
    event(0, 6, 8, "forward", 10, stage=3),
    event(0, 9, 10, "backward-input", stage=3),
    event(1, 6, 7, "forward"),
    event(1, 7, 9, "backward", 10),
    event(1, 9, 10, "backward-weight"),
    Event("optimizer", "compute", 1, 14, 15),
    Event("0 -> 1", "communication", 0, 6, 14.5),
]


def drawn_boxes(ax) -> dict[tuple[int, float, float], tuple[float, float, str]]:
    """(row, start, end) -> (top, bottom, colour) of what is drawn."""
    found = {}
    for collection in ax.collections:
        assert isinstance(collection, PolyCollection)
        colors = collection.get_facecolor()
        for path, color in zip(collection.get_paths(), colors, strict=True):
            (left, top), (right, bottom) = path.vertices[0], path.vertices[2]
            found[round((top + bottom) / 2), left, right] = (top, bottom, style.hex_of(color))
    return found


def test_every_action_is_a_box_of_its_kinds_colour_and_nothing_else_is():
    ax = plots.schedules(Timeline(EVENTS)).axes[0]
    boxes = drawn_boxes(ax)
    for one in EVENTS[:-1]:
        top, bottom, color = boxes.pop((one.rank, one.start - 5, one.end - 5))
        first, last = style.ACTION_COLORS[one.detail.get("action", one.name)]
        assert color == style.hex_of(last if one.detail.get("micro_batch") else first)
        assert one.rank - 0.5 < top < bottom < one.rank + 0.5
    assert not boxes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["rank 0", "rank 1"]
    assert ax.get_xlabel() == "time (s)"


def test_a_later_stage_of_a_rank_lies_lower_and_the_optimizer_takes_the_row():
    boxes = drawn_boxes(
        plots.schedules(Timeline([*EVENTS[:3], Event("optimizer", "compute", 0, 12, 13)])).axes[0]
    )
    first, later, optimizer = (boxes[0, a, b] for a, b in ((0, 1), (1, 3), (7, 8)))
    assert later[0] - first[0] == pytest.approx(later[1] - first[1])
    assert later[0] > first[0] + 0.2
    assert optimizer[:2] == pytest.approx((first[0], later[1]))


def test_idle_is_what_no_action_fills_of_the_whole_time():
    assert idle_shares(boxes_of(Timeline(EVENTS))) == pytest.approx({0: 0.6, 1: 0.5})
    words = [t.get_text() for t in plots.schedules(Timeline(EVENTS)).axes[0].texts]
    assert [w for w in words if w.endswith("%") or w == "idle"] == ["idle", "60%", "50%"]


def test_several_have_one_time_axis():
    longer = [event(0, 0, 25, "forward")]
    axes = plots.schedules({"short": Timeline(EVENTS), "long": Timeline(longer)}).axes
    assert axes[0].get_xlim() == axes[1].get_xlim()
    assert axes[0].get_xlim()[1] == pytest.approx(25, rel=0.01)
    assert [ax.get_title(loc="left") for ax in axes] == ["short: 10 s", "long: 25 s"]


def numbers(ax) -> list[str]:
    return [t.get_text() for t in ax.texts if not isinstance(t, Annotation)]


def test_numbers_are_written_where_they_fit():
    wide = [event(0, i, i + 1, "forward", i) for i in range(12)]
    assert numbers(plots.schedules(Timeline(wide)).axes[0]) == [str(i) for i in range(12)]
    assert not numbers(plots.schedules(Timeline(wide), labels=False).axes[0])
    narrow = [event(0, i, i + 1, "forward", i) for i in range(400)]
    assert not numbers(plots.schedules(Timeline(narrow)).axes[0])
    # Two digits stand upright first, then on their side.
    middle = [event(0, i, i + 1, "forward", i) for i in range(85)]
    turned = {
        len(t.get_text()): t.get_rotation()
        for t in plots.schedules(Timeline(middle)).axes[0].texts
        if not isinstance(t, Annotation)
    }
    assert turned == {1: 0, 2: 90}


def test_the_legend_has_the_kinds_that_are_there():
    legend = plots.schedules(Timeline(EVENTS)).legends[0]
    assert [t.get_text() for t in legend.get_texts()] == list(style.ACTION_COLORS)
    assert (
        legend.get_title().get_text()
        == "darker: later micro-batch; lower in the row: later stage of the rank"
    )
    legend = plots.schedules(Timeline([event(0, 0, 1, "forward")])).legends[0]
    assert [t.get_text() for t in legend.get_texts()] == ["forward"]
    assert legend.get_title().get_text() == ""


def shades(action: str) -> list[str]:
    return [style.between(*style.ACTION_COLORS[action], part) for part in (0, 0.5, 1)]


@pytest.mark.parametrize("vision", VISION)
def test_kinds_are_told_apart_whatever_the_micro_batch(vision):
    for a, b in itertools.combinations(style.ACTION_COLORS, 2):
        for one, other in itertools.product(shades(a), shades(b)):
            assert np.linalg.norm(lab(one, vision) - lab(other, vision)) > 12, (a, b)


def test_kinds_are_told_apart_in_grey_and_their_numbers_read():
    for a, b in itertools.combinations(style.ACTION_COLORS, 2):
        for one, other in itertools.product(shades(a), shades(b)):
            apart = style.contrast(one, other) > 1.35
            assert apart or style.ACTION_HATCHES.get(a) != style.ACTION_HATCHES.get(b), (a, b)
    for action in style.ACTION_COLORS:
        assert all(style.contrast(style.text_on(c), c) >= 4.5 for c in shades(action))


def test_what_has_a_timeline_is_drawn_in_its_own_unit():
    class Plan(HasTimeline):
        time_unit = "blinks"
        name = "a plan"
        timeline = Timeline(EVENTS)

    ax = plots.schedules(Plan()).axes[0]
    assert (ax.get_title(loc="left"), ax.get_xlabel()) == ("a plan: 10", "time (blinks)")
    assert plots.schedules(Plan(), unit="seconds").axes[0].get_xlabel() == "time (s)"


def test_what_is_stored_is_a_step_per_change():
    levels = [[(0, 0), (1, 3), (4, 1)], [(0, 0), (2, 2)]]
    picture = plots.stored_over_time({"a": levels}, limit=2, unit="micro-batches")
    first, second = picture.axes
    step, limit = (next(one for one in first.get_lines() if len(one.get_xdata()) == n) for n in (4, 2))  # fmt: skip
    assert step.get_drawstyle() == "steps-post"
    assert [list(xy) for xy in step.get_xydata()] == [[0, 0], [1, 3], [4, 1], [4, 1]]
    assert set(limit.get_ydata()) == {2}
    peaks = [ax.texts[0] for ax in (first, second)]
    assert [p.get_text() for p in peaks] == ["3", "2"]
    assert [p.get_fontweight() for p in peaks] == ["bold", "normal"]  # only one is above the limit
    assert second.texts[1].get_text() == "at the right: peak (micro-batches); dashed: limit 2"
    assert first.get_ylim() == second.get_ylim()


def test_bytes_are_written_as_such():
    ax = plots.stored_over_time([[(0, 3 * 2**30), (1, 0)]], unit="bytes").axes[0]
    assert ax.texts[0].get_text() == "3 GiB"


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: plots.schedules({}), "nothing to draw"),
        (lambda: plots.schedules(Timeline()), "no event of Timeline.* has a detail 'action'"),
        (lambda: plots.schedules(Timeline([Event("a", "compute", 0, 0, 1)])), "record=True"),
        (lambda: plots.schedules({"a": 3}), "int has no timeline"),
        (lambda: plots.stored_over_time({}), "nothing to draw"),
        (lambda: plots.stored_over_time({"a": [[]]}), "at least one"),
    ],
)
def test_what_cannot_be_drawn_is_said(draw, says):
    with pytest.raises(ValueError, match=says):
        draw()
