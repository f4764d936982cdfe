"""Random trainings under each technique, against one process, parameter by parameter, in double.

Many are drawn, and run in one launch. A failing one is made smaller, down to a program that reads like one, and printed
so that it can be run:

    DDP, finding unused
    2 ranks, SGD(lr=0.1)
    model of width 1
        block 0: linear, no bias
        block 1: linear, no bias, optional
    step 0
        in no_sync(): backward of forward(1 and 1 rows)
        backward of forward(1 and 1 rows; rank 0 without block 1)
    step 0, rank 0: layers.1.weight: the gradient is off by ...

    PYTHONPATH=. .venv/bin/python - <<'END'
    ...

The same trainings each time. DTCOURSE_FUZZ=10 tries ten times as many (make test-all does), DTCOURSE_FUZZ_SEED=1
others, DTCOURSE_FUZZ_ONLY=ZeRO those of the techniques with that in their name.
"""

from __future__ import annotations

import os

import pytest

from tests.fuzz.drawing import drawn
from tests.fuzz.reducing import reduced
from tests.fuzz.running import complaints, tried
from tests.fuzz.strategies import programs
from tests.fuzz.techniques import FLAT, TALKING_LESS, TECHNIQUES
from tests.fuzz.unequal import UNEQUAL
from tests.fuzz.written import shown
from tests.turns import taking_turns

SEED = int(os.environ.get("DTCOURSE_FUZZ_SEED") or 0)
ONLY = os.environ.get("DTCOURSE_FUZZ_ONLY") or ""
EACH = int(10 * float(os.environ.get("DTCOURSE_FUZZ") or 1))  # programs for each technique
AT_ONCE = 40


@pytest.mark.slow
@pytest.mark.timeout(0)  # each launch has a limit of its own
@pytest.mark.parametrize("ranks", [3, *taking_turns(2, about="tests/fuzz/")])
@pytest.mark.parametrize(
    "family",
    [TECHNIQUES, FLAT, TALKING_LESS, UNEQUAL],
    ids=["", "flat", "talking-less", "unequal"],
)
def test_each_technique_is_one_process(family, ranks):
    names = [name for name in family if ONLY in name]
    if not names:
        pytest.skip(f"no technique here has {ONLY!r} in its name")
    strategy = programs(ranks)
    if family is UNEQUAL:  # it takes none with buffers, and then too few would be left to compare
        strategy = strategy.filter(lambda one: not any(block.buffer for block in one.blocks))
    found = drawn(strategy, EACH * len(names), SEED)
    # dealt out in turn; what fails is made smaller by reducing.py, many at a time in one launch
    examples = [(names[i % len(names)], program) for i, program in enumerate(found)]
    assert len(examples) > EACH * len(names) // 2, "hypothesis found no more"
    tried.clear()
    try:
        for start in range(0, len(examples), AT_ONCE):
            part = examples[start : start + AT_ONCE]
            for number, said in enumerate(complaints(part, ranks)):
                if said:
                    smallest, said = reduced(part[number], said)
                    which = f"number {start + number} of {len(examples)}"
                    pytest.fail(f"{shown(smallest, said)}\n({which})", pytrace=False)
    finally:
        print(f"{ranks} ranks:", dict(tried))
    assert tried["compared"] > len(examples) // 2, "most are refused: then they prove little"
