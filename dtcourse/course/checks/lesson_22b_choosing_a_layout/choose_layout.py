"""Degrees, the order of the axes and micro-batches that fit: the job is run with the answer's choice."""

from __future__ import annotations

from dtcourse.course.checks.lesson_22b_choosing_a_layout import layouts
from dtcourse.course.checks.lesson_22b_choosing_a_layout.layouts import Choice, Job
from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_layout",
    lesson="22b",
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
LINKS = (20e-6, 200e6, 20e6)
HEAVY = Job(0.2e-3, 1e-3, 64 * KB, 512 * KB, 4 * KB, 16 * KB, *LINKS)
WIDE = Job(0.4e-3, 0.5e-3, 48 * KB, 384 * KB, 16 * KB, 32 * KB, *LINKS)
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
    jobs = [job for job, *_ in cases]
    said = call_each(answer, [(*job, room) for job, room, *_ in cases])
    chosen = [tuple(got) if isinstance(got, (list, tuple)) else got for got in said]
    where = [
        f"{job.weights:,} bytes of gradients, {job.passed:,} passed and {job.kept:,} kept per sample, "
        f"{1e3 * job.launch:g} ms per micro-batch and {1e3 * job.sample:g} ms per sample, room {room:,}"
        for job, room, *_ in cases
    ]
    for case, choice in zip(where, chosen, strict=True):
        require(
            choice in layouts.choices(),
            f"{case}: a choice is (dp, pp, tp, order, micro), such as (2, 2, 2, 'pp dp tp', 4): degrees whose "
            f"product is {layouts.RANKS}, at most {layouts.LAYERS} stages, the axes of several ranks in order, and "
            f"micro-batches of a sample at least; got {choice!r}.",
        )
    # All on one cluster, so that one launch runs them all.
    given = [(choice, tuple(job)) for choice, job in zip(chosen, jobs, strict=True)]
    run = answer.run(layouts.steps, layouts.RANKS, given, **layouts.options(*LINKS))
    for at, (case, choice, (_, room, _, least)) in enumerate(
        zip(where, chosen, cases, strict=True)
    ):
        seconds, held = (max(by_rank[at][i] for by_rank in run) for i in (0, 1))
        require(
            held <= room,
            f"{case}: with {choice!r} the fullest rank holds {held:,.0f} bytes. Which axes share a layer's "
            "states, and of how many micro-batches does the first stage keep something at once?",
        )
        require_near_best(case, choice, 1e3 * seconds, 1e3 * least, "ms", hint)


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
