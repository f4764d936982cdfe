"""Logs of rings of asynchronous tensor parallelism, drawn anew for each check: what is wrong, and where."""

from __future__ import annotations

from random import Random

from dtcourse.course.checks.lesson_19b_overlapped_tensor_parallel import ring_logs
from dtcourse.course.checks.lesson_19b_overlapped_tensor_parallel.ring_logs import Log
from dtcourse.course.judging import Answer, Exercise, require_kind

DIAGNOSE = Exercise(
    "diagnose_ring",
    lesson="19b",
    title="What is wrong with this ring?",
    takes=("diagnose_ring",),
    target="30 of 30 logs of 4 to 6 ranks, drawn anew each time",
)

EACH = 3  # logs with a mistake, and as many healthy ones beside them


def _described(log: Log) -> str:
    return f"A log of {len(log)} ranks"


def _require(answer: Answer, kind: str, hint: str) -> None:
    draw = Random()
    require_kind(
        answer,
        kind,
        hint,
        drawn=lambda one, turn: ring_logs.run_of(one, turn, draw),
        each=EACH,
        describe=_described,
        healthy="How much do times differ where all is well, may all messages take longer than the products, and how "
        "far from equal is rounding to single precision?",
        example=("slow link", 2),
    )


@DIAGNOSE.check("sums that end elsewhere", points=2)
def check_elsewhere(answer: Answer) -> None:
    """Each sum is right, and on another rank."""
    _require(answer, "ends elsewhere", "For whom is a rank's last product, and who needs that sum?")


@DIAGNOSE.check("messages that nothing hides", points=2)
def check_late(answer: Answer) -> None:
    """Every rank waits for the whole message."""
    _require(
        answer,
        "posted late",
        "What does a rank do between handing its sum to the network and the arrival of the next one?",
    )


@DIAGNOSE.check("a rank that drops the sums it gets", points=2)
def check_drops(answer: Answer) -> None:
    """Others' results are wrong for it."""
    _require(
        answer,
        "drops sums",
        "Wrong sums travel on: which rank is the one whose sum is not what came and its own product?",
    )


@DIAGNOSE.check("a slow rank", points=2)
def check_rank(answer: Answer) -> None:
    """The others wait, not this one."""
    _require(
        answer,
        "slow rank",
        "Who waits, and for whom? Which rank's own work takes longer than the others'?",
    )


@DIAGNOSE.check("a slow link", points=2)
def check_link(answer: Answer) -> None:
    """Which rank sends over it?"""
    _require(
        answer,
        "slow link",
        "How long is each message on its way, from one rank's log to the next one's? From which rank does the slow "
        "one come?",
    )
