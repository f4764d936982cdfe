"""Go on with another number of ranks."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

from dtcourse.course.checks.lesson_07_data_loading.samples import counted
from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.plural import plural

RESUME = Exercise(
    "resume_anywhere",
    lesson="07",
    title="Go on with another number of ranks",
    takes=("Resumable",),
    target="1,000 samples over 5 interruptions and 1 to 8 ranks: 0 lost, 0 twice; a state of at most 200 bytes",
    forbidden=(
        "torch.utils.data",
        "dtcourse.data",
    ),
)


def _segments(
    resumable: Any, total: int, plan: list[tuple[int, int, int]], who: list[int]
) -> dict[str, Any]:
    """Ranks in lock-step. After each segment one rank's state goes through JSON to all ranks of the next one."""
    read, state, sizes, lengths = [], None, [], []
    for (size, batch, steps), keeper in zip(plan, who, strict=True):
        ranks = [resumable(total, size, rank, batch) for rank in range(size)]
        if state is not None:
            for one in ranks:
                one.load(json.loads(state))
        iterators = [iter(one) for one in ranks]
        segment = []
        for _ in range(steps):
            for iterator in iterators:
                taken = [int(i) for i in next(iterator, [])]
                lengths.append((len(taken), batch))
                segment += taken
        read.append(segment)
        state = json.dumps(ranks[keeper % size].state())
        sizes.append(len(state))
    return {"read": read, "bytes": max(sizes), "lengths": lengths}


def _resume(answer: Answer, total: int, plan: list[tuple[int, int, int]], why: str) -> Any:
    who = [random.randrange(8) for _ in plan]
    result = answer.call(_segments, total, plan, who)
    words = " then ".join(f"{plural(size, 'rank')} x {batch}" for size, batch, _ in plan)
    for taken, batch in result["lengths"]:
        require(
            taken <= batch,
            f"A batch of {taken} indices came, where at most {batch} were asked for.",
        )
    counted(
        [i for segment in result["read"] for i in segment],
        total,
        f"{total} samples, {words}",
        f"{why} Is what is saved a number of places of all ranks together, or of this rank alone?",
        f"{why} Does the position count what has been handed out, or what has been prepared?",
    )
    return result


@RESUME.check("one epoch without an interruption", points=1, needs=("check_same",))
def check_whole(answer: Answer) -> None:
    """In a shuffled order, also where nothing divides anything."""
    for total, size, batch in ((100, 1, 7), (101, 3, 8), (5, 8, 2)):
        result = _resume(answer, total, [(size, batch, 200)], "No state was loaded here.")
        if total > 90:
            order = result["read"][0]
            rising = sum(a < b for a, b in pairwise(order))
            require(rising < 0.8 * total, "The samples come in their own order. Are they shuffled?")


@RESUME.check("interrupted, and resumed on as many ranks", points=2)
def check_same(answer: Answer) -> None:
    """The state is taken between two batches."""
    for steps in (0, 1, 5):
        _resume(
            answer, 200, [(4, 6, steps), (4, 6, 200)], f"The state was saved after {steps} batches."
        )


@RESUME.check("1,000 samples, five interruptions, 1 to 8 ranks, any rank's state", points=4)
def check_any(answer: Answer) -> None:
    """Numbers of ranks and batch sizes change at each interruption."""
    for _ in range(3):
        plan = [
            (random.randint(1, 8), random.randint(1, 9), random.randint(0, 5)) for _ in range(5)
        ]
        result = _resume(
            answer, 1000, [*plan, (3, 7, 1000)], "The number of ranks changes at each interruption."
        )
        require(
            result["bytes"] <= 200,
            f"The state is {result['bytes']:,} bytes of JSON for 1,000 samples; at most 200 are allowed. "
            "If all ranks agree on one order, what is the least that says how far they are?",
        )


@RESUME.check("every rank saves the same, also where one runs out before the others", points=2)
def check_uneven(answer: Answer) -> None:
    """Ends that are not full batches."""
    for total, plan in (
        (21, [(4, 3, 1), (4, 3, 1), (2, 2, 50)]),
        (7, [(2, 2, 2), (1, 1, 50)]),
        (10, [(4, 1, 3), (3, 2, 50)]),
    ):
        for _ in range(4):
            _resume(
                answer, total, plan,
                "The last batches are smaller than the others, or there are none left on some ranks.",
            )  # fmt: skip
