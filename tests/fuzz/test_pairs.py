"""Random models under each pair of techniques that works, against one process, parameter by parameter, in double.

Of each pair some models are drawn (tied, with frozen and unused parameters) with a layout of 2 x 2 and one of 3 x 2
ranks, and another layout that reads what the first one has saved. What fails is made smaller and printed as a script.
DTCOURSE_FUZZ, DTCOURSE_FUZZ_SEED and DTCOURSE_FUZZ_ONLY as in test_techniques.py; ONLY is a part of "outer x inner".
"""

from __future__ import annotations

import os
import random
import re
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest

from dtcourse.models import TransformerConfig
from dtcourse.pipeline_parallel import engine
from tests.fuzz.drawing import drawn
from tests.fuzz.pairs import AXIS, DRAWN, OVER_DATA, Case, cases, complaints, run
from tests.fuzz.reducing import reduced
from tests.fuzz.simpler_pairs import shown, simpler
from tests.fuzz.written import written
from tests.pairs.grid import Grid, Task
from tests.turns import takes_turns, taking_turns

SEED = int(os.environ.get("DTCOURSE_FUZZ_SEED") or 0)
ONLY = os.environ.get("DTCOURSE_FUZZ_ONLY") or ""
MANY = int(8 * float(os.environ.get("DTCOURSE_FUZZ") or 1))  # models for each number of ranks
AT_ONCE = 24
NAMES = {one.__name__: one for one in (Case, Grid, Task, TransformerConfig)}


def examples_of(ranks: int, many: int) -> list[Case]:
    """As many of each pair as of each other, or one of some: another choice of these for each number of ranks."""
    pairs = [pair for pair in DRAWN if ONLY in " x ".join(pair)]
    random.Random(10 * SEED + ranks).shuffle(pairs)
    found = []
    for number, pair in enumerate(pairs):
        if each := len(range(number, many, len(pairs))):
            found += some(pair, ranks, each, 1000 * SEED + number)
    return found


def some(pair: tuple[str, str], ranks: int, each: int, seed: int) -> list[Case]:
    """The first ones that hypothesis draws are its simplest, and much alike: they are left out."""
    return drawn(cases(pair, ranks), each + 10, seed)[-each:]


@pytest.mark.slow
@pytest.mark.timeout(0)  # each launch has a limit of its own
@pytest.mark.parametrize("ranks", [4, *taking_turns(6, about="tests/fuzz/")])
def test_each_pair_is_one_process(ranks):
    examples = examples_of(ranks, MANY)
    if not examples:
        pytest.skip(f"no pair here has {ONLY!r} in its name")
    for start in range(0, len(examples), AT_ONCE):
        part = examples[start : start + AT_ONCE]
        for number, said in enumerate(complaints(part)):
            if said:
                smallest, said = reduced(part[number], said, simpler, complaints)
                which = f"number {start + number} of {len(examples)}"
                pytest.fail(f"{shown(smallest, said)}\n({which})", pytrace=False)


# Tied, of three layers with biases, SwiGLU, frozen and unused parameters; two layouts and schedules.
LARGE = Case(
    Grid(pipe=2),
    Grid(pipe=2, schedule="interleaved"),
    Task(
        TransformerConfig(vocab=9, n_layers=3, d_model=8, n_heads=2, max_length=4, mlp="swiglu"),
        frozenset({3, 9}),
    ),
)
SMALLEST = Case(
    Grid(pipe=2, schedule="GPipe"),
    Grid(pipe=2, schedule="GPipe"),
    Task(
        TransformerConfig(
            vocab=5, n_layers=1, d_model=8, n_heads=2, max_length=4, bias=False, norm="rms", balancing=0.0
        ),
        unused=False,
    ),
)  # fmt: skip


def forgets_copies(case):
    """Gradients of a tied weight's copies are not added up over the stages."""
    with patch.object(engine, "sum_over_copies", lambda copies, group: None):
        return run(case)


@pytest.mark.slow
@pytest.mark.timeout(0)  # each launch has a limit of its own
@takes_turns("tests/fuzz/")
def test_a_mistake_with_tied_weights_is_shown_by_a_model_that_has_nothing_else():
    assert SMALLEST.task.config.tied
    untied = replace(
        SMALLEST, task=replace(LARGE.task, config=replace(LARGE.task.config, tied=False))
    )
    wrong = partial(complaints, run=forgets_copies)
    said, right = wrong([LARGE, untied])
    assert not right, "the mistake is about nothing else"
    smallest, said = reduced(LARGE, said, simpler, wrong)
    assert smallest == SMALLEST, said
    assert re.search("token_embedding.weight .* and output.weight", said)


def test_all_pairs_are_drawn_and_what_models_have():
    assert len(DRAWN) >= 20
    for ranks in (4, 6):
        found = [case for number in range(2) for case in of_each_pair(ranks, number)]
        tasks = [case.task for case in found]
        assert any(task.config.tied for task in tasks)
        assert any(task.frozen for task in tasks)
        assert any(task.unused for task in tasks)
        assert {case.source.schedule for case in found if case.source.pipe > 1} >= {"GPipe", "1F1B"}


def of_each_pair(ranks: int, number: int) -> list[Case]:
    """Each of them is of its pair."""
    found = [some(pair, ranks, 1, 100 * number + i)[0] for i, pair in enumerate(DRAWN)]
    for case, (outer, inner) in zip(found, DRAWN, strict=True):
        grid = case.source
        assert sorted(grid.shape) == [1, 1, 2, ranks // 2]
        assert getattr(grid, AXIS[inner]) > 1
        assert grid.outer == (outer if outer in OVER_DATA else "nothing")
    return found


def test_a_printed_case_makes_itself_again():
    for case in of_each_pair(6, 0):
        assert eval(written(case), NAMES) == case


def test_simpler_cases_are_other_ones_and_fit():
    for case in of_each_pair(4, 1):
        for candidate in simpler(case):
            assert candidate != case
            assert candidate.fits()
