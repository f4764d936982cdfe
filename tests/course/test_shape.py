"""Each rule of a lesson's shape, broken once."""

import copy

import pytest

from dtcourse.course import authoring
from dtcourse.course.normalise import normalise
from dtcourse.course.shape import lesson_faults

TOPICS = {"02.spmd": "one program", "02.launching": "how"}
TEXT = """\
# %% [markdown] id=title
# # 02 · A title
# **You will be able to** do it.
#
# **Know first:** lesson 01.
#
# **Takes:** 45 minutes. **Needs:** two CPU cores.
#
# ![ranks](ranks.png)

# %% id=parameters tags=parameters
WORLD_SIZE = 4
DEVICE = BACKEND = CLUSTER = None

# %% id=one topics=02.spmd
print(1)
use_cluster(CLUSTER)

# %% id=two topics=02.launching
print(2)

# %% id=three reason=times
print(3)

# %% id=four
print(4)

# %% [markdown] id=end
# ## Break it
# ## The real thing: torch
# ## What to remember
"""


def executed(text: str = TEXT) -> dict:
    notebook = authoring.build(text)
    for count, cell in enumerate((c for c in notebook["cells"] if c["cell_type"] == "code"), 1):
        cell["execution_count"] = count
        if cell["source"].startswith("print"):
            cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": f"{count}\n"}]
    return normalise(notebook, seconds=1.0)


def test_a_lesson_in_shape_has_no_faults():
    assert lesson_faults(executed(), "02", TOPICS) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("# # 02 · A title", "# A title", "no heading"),
        ("**You will be able to** do", "**You do**", "you will be able to"),
        ("**Know first:** lesson 01.", "", "what to know first"),
        ("45 minutes", "some time", "how many minutes"),
        ("**Needs:** two CPU cores.", "", "what it needs"),
        ("![ranks](ranks.png)", "", "no picture"),
        ("id=parameters tags=parameters", "id=parameters", "0 cells are tagged `parameters`"),
        ("BACKEND = CLUSTER", "BACKEND", "does not set CLUSTER"),
        ("use_cluster(CLUSTER)", "", "its launches stay on this machine"),
        ("DEVICE = BACKEND = CLUSTER", "DEVICE = CLUSTER", "does not set BACKEND"),
        ("topics=02.launching", "", "no code cell teaches 02.launching"),
        ("topics=02.launching", "topics=02.launchin", "02.launchin is no topic"),
        ("topics=02.launching", "topics=02.launching,26.time-limits", "so take it out of LATER"),
        ("topics=02.launching", "topics=launching", "write the topic as 02.launching"),
        ("## Break it", "## Mend it", "no section `Break it`"),
        ("## The real thing", "## A thing", "no section `The real thing`"),
        ("## What to remember", "## End", "no section `What to remember`"),
        ("print(4)", "print(4)\n" + "x = 1\n" * 25, "26 lines of code"),
        ("id=four", "id=four reason=times", "2 of the 4"),
        ("reason=times", "tags=nbval-ignore-output", "without a reason"),
    ],
)
def test_each_rule_can_be_broken(old, new, fault):
    assert TEXT.count(old) >= 1
    assert any(
        fault in found for found in lesson_faults(executed(TEXT.replace(old, new)), "02", TOPICS)
    )


def test_the_median_of_the_cells_lengths():
    long = TEXT
    for number in "1234":
        long = long.replace(f"print({number})", f"print({number})\n" + "x = 1\n" * 17)
    assert any(
        "median code cell has 18" in fault for fault in lesson_faults(executed(long), "02", TOPICS)
    )


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        (
            {"output_type": "stream", "name": "stderr", "text": "a.py:1: UserWarning: do not\n"},
            "prints a warning",
        ),
        (
            {"output_type": "stream", "name": "stdout", "text": "/home/ana/x\n"},
            "a path of this machine",
        ),
        (
            {"output_type": "error", "ename": "ValueError", "evalue": "", "traceback": []},
            "ends in ValueError",
        ),
    ],
)
def test_outputs_that_may_not_be_committed(output, fault):
    notebook = copy.deepcopy(executed())
    notebook["cells"][2]["outputs"].append(output)
    assert any(fault in found for found in lesson_faults(notebook, "02", TOPICS))
