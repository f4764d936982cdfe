"""Every tool of dtcourse.debugging over the launches of a whole lesson, unasked: none speaks where nothing is declared.

A lesson takes minutes so, four times its own time, so that each run draws one; all of them by
`python -m dtcourse.course.watching`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dtcourse.course import notebook as nbfile
from dtcourse.course import places, watching
from dtcourse.course.declared_breaks import DECLARED

LESSONS = places.notebooks("lessons")
ALL = tuple(LESSONS)
TOOLS = ("dtcourse/debugging/unasked/", "dtcourse/course/watching.py", "dtcourse/launch/around.py")

ARRANGED = """
import torch, torch.distributed as dist
from dtcourse import launch


def trains(drifts):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    for _ in range(3):
        model(torch.randn(4, 3)).square().mean().backward()
        for p in model.parameters():
            if not drifts:
                dist.all_reduce(p.grad)
        optimizer.step()
        optimizer.zero_grad()
    return model.weight.sum().item()
"""


def _notebook(*cells: tuple[str, str]) -> str:
    """Of (kind, source), each with its place as its id."""
    made = [
        {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": source}
        | ({"outputs": [], "execution_count": None} if kind == "code" else {})
        for number, (kind, source) in enumerate(cells)
    ]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.mark.slow
@pytest.mark.notebooks
@pytest.mark.stands_on(*TOOLS, share=(1, 4))
def test_what_is_said_is_told_with_its_cell_and_a_break_is_expected(tmp_path):
    path = tmp_path / "99-arranged.ipynb"
    path.write_text(
        _notebook(
            ("code", ARRANGED),
            ("code", ""),
            ("code", "launch(trains, 2, False, device='cpu')"),
            ("code", "launch(trains, 2, True, device='cpu', wait=False).result()"),
            ("markdown", "## Break it"),
            ("code", "launch(trains, 2, True, device='cpu')"),
            ("code", "launch(trains, 2, False, device='cpu')\nraise ValueError('ends here')"),
            ("code", "launch(trains, 2, True, device='cpu')"),
        )
    )
    before = path.read_bytes()
    found = watching.watch(path)
    assert path.read_bytes() == before
    assert found.launches == 4 and "ends here" in found.failure
    assert [(one.cell, one.tool, one.expected) for one in found.spoken] == [
        ("cell-3", "replicas", False),
        ("cell-5", "replicas", True),
    ]
    assert all("Since step 0" in one.sentence for one in found.spoken)


def _drawn(number: str):
    """One lesson of all, by `make test`."""
    turn = {"place": ALL.index(number), "share": (1, len(ALL)), "lately": (1, len(ALL))}
    return pytest.param(number, marks=pytest.mark.stands_on(*TOOLS, **turn))


@pytest.mark.slow
@pytest.mark.notebooks
@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", [*map(_drawn, ALL)])
def test_no_tool_speaks_of_a_lessons_launches_but_of_declared_breaks(number):
    found = watching.watch(LESSONS[number])
    assert found.failure == ""
    # Lesson 30 plans for clusters that nobody has, and launches nothing.
    assert (found.launches > 0) == ("launch(" in LESSONS[number].read_text(encoding="utf-8"))
    assert [str(one) for one in found.spoken if not one.expected] == []
    spoken = {(one.cell, one.tool) for one in found.spoken}
    for (lesson, cell), tools in DECLARED.items():
        if lesson == number:
            assert {(cell, tool) for tool in tools} <= spoken, "declared, and nothing is said"


def test_declared_cells_are_there():
    for lesson, cell in DECLARED:
        assert cell in {one["id"] for one in nbfile.read(Path(LESSONS[lesson]))["cells"]}
