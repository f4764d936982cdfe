"""The fuzz test finds mistakes, makes the program small that shows one, and prints it so that it can be run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dtcourse.verify.chains import Block
from dtcourse.verify.programs import Forward, MicroBatch, Program
from tests.fuzz.drawing import drawn
from tests.fuzz.mistakes import MISTAKES
from tests.fuzz.reducing import reduced, simpler
from tests.fuzz.running import PATIENCE, complaints
from tests.fuzz.strategies import programs
from tests.fuzz.written import script, written
from tests.turns import takes_turns

SMALLEST = Program(
    ranks=2,
    blocks=(Block(bias=False),),
    steps=((MicroBatch((Forward((1, 1), (frozenset(), frozenset())),)),),),
    width=1,
)


@pytest.mark.slow
@pytest.mark.timeout(0)  # each launch has a limit of its own
@pytest.mark.parametrize(
    ("name", "within"),
    [
        ("mistake: a sum", 5),
        pytest.param("mistake: own start", 5, marks=takes_turns("tests/fuzz/")),
        pytest.param("mistake: what a rank has", 30, marks=takes_turns("tests/fuzz/")),
    ],
)
def test_it_finds_a_mistake(name, within):
    assert name in MISTAKES
    examples = [(name, program) for program in drawn(programs(2), within, 0)]
    said = complaints(examples, 2, PATIENCE / 6)
    first = next((i for i, text in enumerate(said) if text), None)
    assert first is not None, f"{within} programs, and nothing"
    if (
        name == "mistake: what a rank has"
    ):  # not one that a busy machine ran late: ranks that used other blocks
        used = {f.left_out for m in examples[first][1].steps for b in m for f in b.forwards}
        assert any(len(set(by_rank)) > 1 for by_rank in used), said[first]
    if name != "mistake: a sum":
        return
    (found, program), text = reduced(examples[first], said[first])
    assert (found, program) == (name, SMALLEST)
    assert "2 times too large" in text


def test_what_is_printed_makes_the_same_program():
    for program in drawn(programs(3), 50, 0):
        assert eval(written(program)) == program
    assert len(written(SMALLEST).splitlines()) <= 12


@takes_turns("tests/fuzz/")
def test_what_is_printed_can_be_run(root):
    text = script(("mistake: a sum", SMALLEST)).splitlines()
    assert text[0] == "PYTHONPATH=. .venv/bin/python - <<'END'"
    assert text[-1] == "END"
    # As a shell would, but for the Python: an environment may be elsewhere.
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-"], input="\n".join(text[1:-1]), cwd=root, env=environment,
        capture_output=True, text=True,
    )  # fmt: skip
    assert "2 times too large" in done.stdout, done.stderr


def test_simpler_programs_are_other_programs():
    for program in drawn(programs(2), 30, 0):
        assert all(candidate != program for candidate in simpler(program))
    assert not list(simpler(SMALLEST))
