"""Records of runs that were resumed, drawn anew for each check: what went wrong when the run went on?"""

from __future__ import annotations

from random import Random

from dtcourse.course.checks.lesson_16b_fsdp_in_practice import resumed_runs
from dtcourse.course.checks.lesson_16b_fsdp_in_practice.resumed_runs import Log, Norms
from dtcourse.course.judging import Answer, Exercise, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_resume",
    lesson="16b",
    title="What went wrong when it was resumed?",
    takes=("diagnose_resume",),
    target="30 of 30 runs of 2 to 4 ranks, drawn anew each time",
)

EACH = 3  # runs with a mistake, and as many healthy ones beside them


def _described(first: Log, second: Log, written: dict[int, Norms], read: Norms) -> str:
    start = min(second)
    return (
        f"A run of {plural(len(written[start]), 'rank')}, resumed on {len(read)} from step {start}"
    )


def _require(answer: Answer, kind: str, hint: str) -> None:
    draw = Random()
    require_kind(
        answer,
        kind,
        hint,
        drawn=lambda one, turn: resumed_runs.run_of(one, turn, draw),
        each=EACH,
        describe=_described,
        healthy="From which of the saves was it resumed, on how many ranks, and how far from equal is rounding?",
        example=("old file", 2),
    )


@DIAGNOSE.check("one old file", points=2)
def check_old_file(answer: Answer) -> None:
    """One rank's, of the save before."""
    _require(
        answer,
        "old file",
        "Which rank has read something else than was written at this save, and what have all others read?",
    )


@DIAGNOSE.check("states that were rounded", points=2)
def check_rounded(answer: Answer) -> None:
    """Written in 16 bits."""
    _require(
        answer,
        "rounded",
        "Which norm is not the one that was written, and by how much? To how many digits do healthy runs agree?",
    )


@DIAGNOSE.check("files in the wrong order", points=2)
def check_wrong_order(answer: Answer) -> None:
    """Every number is read, and lies in another place."""
    _require(
        answer,
        "wrong order",
        "All that was written has been read, and the first batch is the same one. What else does a loss depend on?",
    )


@DIAGNOSE.check("data from the start", points=1)
def check_data_again(answer: Answer) -> None:
    """Samples that have been seen, others that never will be."""
    _require(
        answer,
        "data again",
        "All that was read is as it was written. On what did the first step compute?",
    )


@DIAGNOSE.check("states that were read, and not used", points=2)
def check_states_lost(answer: Answer) -> None:
    """An optimizer that begins anew."""
    _require(
        answer,
        "states lost",
        "All that was read is right, and so are the data and the first loss. Which later step shows what an update "
        "used?",
    )
