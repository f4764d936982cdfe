"""Degrees, the order of the axes and micro-batches that fit: the job is run with the answer's choice."""

from __future__ import annotations

from dtcourse.course.checks.lesson_22_hybrid_parallelism import layouts
from dtcourse.course.checks.lesson_22_hybrid_parallelism.layouts import Choice, Job
from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_layout",
    lesson="22",
    title="Choose a layout",
    takes=("choose_layout",),
    launches=True,
    target="in 4 jobs the fullest rank has room, and a step takes at most 1.01 times the best choice's, both run on 8 "
    "emulated ranks",
    forbidden=(
        "dtcourse.emulation",
        "dtcourse.simulator",
        "dtcourse.launch",
        "dtcourse.hybrid",
    ),
)

KB = 1024
HEAVY = Job(0.2e-3, 1e-3, 64 * KB, 512 * KB, 4 * KB, 16 * KB, 20e-6, 200e6, 20e6)
WIDE = Job(0.4e-3, 0.5e-3, 48 * KB, 384 * KB, 16 * KB, 32 * KB, 20e-6, 200e6, 20e6)
# Job, room, and the best choice with its seconds: tests/course/test_choose_layout.py finds it by running every one.
Case = tuple[Job, int, Choice, float]
ROOMY: tuple[Case, ...] = (
    (HEAVY, 2200 * KB, (4, 1, 2, "tp dp", 1), 19.09984e-3),
    (WIDE, 1000 * KB, (2, 1, 4, "dp tp", 1), 18.18976e-3),
)
TIGHT: tuple[Case, ...] = (
    (HEAVY, 560 * KB, (2, 1, 4, "dp tp", 2), 23.01984e-3),
    (WIDE, 340 * KB, (1, 4, 2, "pp tp", 4), 29.4904e-3),
)


def _require(answer: Answer, cases: tuple[Case, ...], hint: str) -> None:
    given = [(*job, room) for job, room, *_ in cases]
    for (job, room, _, least), got in zip(cases, call_each(answer, given), strict=True):
        where = (
            f"{job.weights:,} bytes of gradients, {job.passed:,} passed and {job.kept:,} kept per sample, "
            f"{1e3 * job.launch:g} ms per micro-batch and {1e3 * job.sample:g} ms per sample, room {room:,}"
        )
        choice = tuple(got) if isinstance(got, (list, tuple)) else got
        require(
            choice in layouts.choices(),
            f"{where}: a choice is (dp, pp, tp, order, micro), such as (2, 2, 2, 'pp dp tp', 4): degrees whose "
            f"product is {layouts.RANKS}, at most {layouts.LAYERS} stages, the axes of several ranks in order, and "
            f"micro-batches of a sample at least; got {got!r}.",
        )
        run = answer.run(layouts.step, layouts.RANKS, choice, tuple(job), **layouts.options(job))
        seconds, held = (max(one[i] for one in run) for i in (0, 1))
        require(
            held <= room,
            f"{where}: with {choice!r} the fullest rank holds {held:,.0f} bytes. Which axes share a layer's "
            "states, and of how many micro-batches does the first stage keep something at once?",
        )
        require_near_best(where, choice, 1e3 * seconds, 1e3 * least, "ms", hint)


@CHOOSE.check("where there is room", points=3)
def check_roomy(answer: Answer) -> None:
    """Data and tensor parallelism, and which of them is inside a node."""
    _require(
        answer,
        ROOMY,
        "How many bytes does each axis send in a step, how many messages, and which of them cross between the nodes in "
        "each order?",
    )


@CHOOSE.check("where there is little room", points=3)
def check_tight(answer: Answer) -> None:
    """What fits, and what that costs."""
    _require(
        answer,
        TIGHT,
        "What does one micro-batch more save, and what does it cost? How long do stages wait, and what does an order "
        "put between the nodes?",
    )
