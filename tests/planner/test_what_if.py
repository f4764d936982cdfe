"""What another choice would take: the prediction of just that layout, also from the widget's controls."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from dtcourse import plots
from dtcourse.planner import Layout, Space, predict, search
from tests.planner.searched import CARD, DEVICES, EXPERTS, MODEL, SOFTWARE

SPACE = Space(
    cp=(1,), schedules=("1f1b", "interleaved"), micro_batches=(1, 2), recompute=("none", "full"), stages=(0, 3),
)  # fmt: skip


@pytest.fixture(scope="module")
def found():
    return search(MODEL, CARD, DEVICES, 16, software=SOFTWARE, space=SPACE, predictions=3)


def test_it_is_the_prediction_of_the_best_with_something_else(found):
    one = found.what_if(
        pp=2, tp=2, stage=3, schedule="interleaved", micro_batch=1, recompute="full"
    )
    layout = replace(
        found.best.layout, pp=2, tp=2, stage=3, dp_shard=2, dp_replicate=1, schedule="interleaved", chunks=2
    )  # fmt: skip
    assert one.layout == layout and one.batch.micro_batch == 1
    software = replace(SOFTWARE, recompute="full")
    again = predict(MODEL, CARD, layout, one.batch, None, software)
    assert (one.seconds, one.nbytes) == (again.seconds, again.peak_bytes)
    best = found.what_if()
    assert best.seconds == found.best.seconds and best.layout == found.best.layout


def test_what_is_left_of_the_devices_has_samples():
    """Shared out with ZeRO or for experts, copied without; a number that is said leaves the rest to the other."""
    experts = Space(
        ep=(2,), tp=(1,), cp=(1,), pp=(1,), stages=(0,), micro_batches=(1,), recompute=("none",)
    )
    found = search(EXPERTS, CARD, DEVICES, 16, software=SOFTWARE, space=experts)
    cases = (
        ({"ep": 1}, (8, 1)),
        ({"ep": 1, "stage": 1}, (1, 8)),
        ({"ep": 2, "tp": 2}, (1, 4)),
        ({"ep": 1, "stage": 3, "dp_replicate": 2}, (2, 4)),
        ({"ep": 1, "stage": 3, "dp_shard": 2}, (4, 2)),
    )
    for changes, degrees in cases:
        layout = found.what_if(**changes).layout
        assert (layout.dp_replicate, layout.dp_shard) == degrees, changes


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"pp": 3}, r"8 devices are no multiple of pp\(3\) x cp\(1\) x tp\(\d\)"),
        ({"tp": 1, "pp": 1, "dp_shard": 3}, r"leave 8 devices, no multiple of dp_shard\(3\)"),
        ({"depth": 2}, "a layout has no depth; it has dp_replicate"),
        ({"tp": 16}, "no multiple of"),
    ],
)
def test_what_cannot_be_is_answered(found, changes, said):
    with pytest.raises(ValueError, match=said):
        found.what_if(**changes)


def test_the_widget_starts_at_the_best_and_draws_what_is_asked(found):
    front, controls = found.pareto(), found.controls()
    explorer = plots.frontier_explorer(front, found.what_if, *controls, limit=CARD.memory)
    assert explorer.values == controls[1]
    assert {"tp", "pp", "stage", "micro_batch", "recompute", "schedule"} <= explorer.values.keys()
    assert "cp" not in explorer.values  # one value alone is no choice
    start = explorer.still
    assert "(as the fastest)" in start.get_suptitle()
    asked = explorer.values | {"pp": 8, "tp": 1, "sequence_parallel": False}
    picture = explorer.update(**asked)
    one = found.what_if(**asked)
    more = one.seconds / front[0].seconds - 1
    assert f"({more:.0%} more than the fastest)" in picture.get_suptitle()
    (ax,) = picture.axes
    points = {tuple(map(float, xy)) for line in ax.get_lines() for xy in line.get_xydata()}
    assert {(one.seconds, one.nbytes), *((each.seconds, each.nbytes) for each in front)} <= points


def test_all_its_controls_are_answered(found):
    values, _ = found.controls()
    answers, refused = [], []
    for asked in itertools.islice(itertools.product(*values.values()), 0, None, 37):
        changes = dict(zip(values, asked, strict=True))
        try:
            answers.append((changes, found.what_if(**changes)))
        except ValueError as error:
            refused.append(str(error))
    assert len(answers) > 5 and len(refused) > 5
    for changes, one in answers:
        assert one.layout.world == DEVICES
        assert (one.layout.tp, one.layout.pp) == (changes["tp"], changes["pp"])


def test_a_layout_of_no_devices_is_refused(found):
    with pytest.raises(ValueError, match="no multiple"):
        found.what_if(pp=2 * DEVICES)
    assert found.why_not(Layout(tp=DEVICES)).startswith("It ")
