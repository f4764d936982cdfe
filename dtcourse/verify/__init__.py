"""Proves a technique equal to one process, gradient by gradient; used by the tests and by the students' checks.

gradients.py   compare two sets of gradients, and say what kind of mistake a difference looks like
cases.py       small models with what real ones have: tied, frozen and unused parameters, buffers
harness.py     train on ranks and in one process, side by side
chains.py      models written down as data, with everything that techniques stumble over
programs.py    whole trainings written down as data: drawn at random by tests/fuzz
"""

from dtcourse.verify.cases import CASES, Case
from dtcourse.verify.gradients import NotEqual, compare, gradients_of, require_close
from dtcourse.verify.harness import on_ranks, one_process

__all__ = [
    "CASES",
    "Case",
    "NotEqual",
    "compare",
    "gradients_of",
    "on_ranks",
    "one_process",
    "require_close",
]
