"""The explorer: every schedule plays, every preset too, and what cannot be is said in the validator's words."""

from __future__ import annotations

import pytest

from dtcourse import plots
from dtcourse.pipeline_parallel import explore
from dtcourse.pipeline_parallel.explore import play
from dtcourse.pipeline_parallel.simulate import Times, simulate
from dtcourse.pipeline_parallel.validate import ScheduleError


@pytest.mark.parametrize("name", explore.CONTROLS["schedule"])
def test_every_schedule_plays(name):
    found = play(name, 2, 6, 2.0, 1.0, 0.5, transfer=0.25)
    assert found.makespan >= 6 * 3.5
    assert found.schedule.num_ranks == 2
    assert found.schedule.micro_batches == 6


def test_numbers_go_where_they_belong():
    found = play("1F1B", 3, 5, 1.5, 2.0, 0.5, transfer=0.25, slow_rank=1, slowdown=3.0)
    times = Times([1.5, 4.5, 1.5], [2, 6, 2], [0.5, 1.5, 0.5], transfer=0.25)
    assert found.starts == simulate(explore.SCHEDULES["1F1B"](3, 5), times).starts


def test_the_search_keeps_to_the_limit():
    assert max(play("searched", 4, 8, memory_limit=3).peak_memory) <= 3
    assert play("searched", 4, 8).makespan < play("searched", 4, 8, memory_limit=3).makespan


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"schedule": "GPipe", "memory_limit": 3}, "rank 0 stores 8 at once, of 3 that it may"),
        ({"schedule": "interleaved 1F1B", "micro_batches": 9}, "9 micro-batches on 4 ranks"),
        ({"ranks": 2, "slow_rank": 5, "slowdown": 2}, "no rank 5 to be slow: 2 ranks"),
        ({"schedule": "best"}, "The schedules are sequential, .*; got 'best'"),
    ],
)
def test_what_is_not_possible_is_said(settings, says):
    with pytest.raises(ValueError, match=says) as error:
        play(**settings)
    assert isinstance(error.value, ScheduleError) == ("memory_limit" in settings)


def test_the_explorer_shows_all_presets_until_a_control_is_moved():
    explorer = plots.schedule_explorer(explore.play, explore.PRESETS, **explore.CONTROLS)
    titles = [ax.get_title(loc="left") for ax in explorer.still.axes]
    assert [title.split(":")[0] for title in titles] == list(explore.PRESETS)
    assert titles[0] == "GPipe: 33 s, bubble rate 27.3%"
    words = [t.get_text() for t in explorer.still.axes[1].texts]
    assert words[words.index("stores") + 1 :][:4] == ["4", "3", "2", "1"]
    shown: list[plots.Picture] = []
    explorer._panel()
    explorer._handle = type("Handle", (), {"update": staticmethod(shown.append)})
    explorer.choose("zero bubble")
    explorer.widgets["memory_limit"].value = 2
    assert "&lt;ZB-H1: 4 ranks" in explorer._error.value
    assert "<br>  rank 3 stores 4 at once, of 2 that it may" in explorer._error.value
    assert [one.axes[0].get_title(loc="left") for one in shown] == [
        "ZB-H1: 27 s, bubble rate 11.1%"
    ]
