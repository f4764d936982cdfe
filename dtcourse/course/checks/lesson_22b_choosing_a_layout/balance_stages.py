"""Layers of each stage and the order of two axes, with a heavy embedding and head: the job is run with the choice."""

from __future__ import annotations

from dtcourse.course.checks.lesson_22b_choosing_a_layout import stages
from dtcourse.course.checks.lesson_22b_choosing_a_layout.stages import Choice, Job
from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best
from dtcourse.course.judging.verdicts import NEAR

BALANCE = Exercise(
    "balance_stages",
    lesson="22b",
    title="Balance the stages, and order the axes",
    takes=("balance_stages",),
    launches=True,
    target="in 4 jobs the fullest rank has room, and a step takes at most 1.01 times the best choice's, both run on 8 "
    "emulated ranks",
    forbidden=(
        "dtcourse.emulation",
        "dtcourse.simulator",
        "dtcourse.launch",
        "dtcourse.hybrid",
        "dtcourse.pipeline_parallel",
    ),
)

KB, MS = 1024, 1e-3
LINKS = (20e-6, 200e6, 20e6)
HEAVY = Job(
    10,
    8,
    (0.05 * MS, 1 * MS, 2.7 * MS),
    (96 * KB, 24 * KB, 96 * KB),
    (4 * KB, 16 * KB, 48 * KB),
    2 * KB,
    *LINKS,
)
WIDE = Job(
    9,
    6,
    (0.1 * MS, 1.2 * MS, 2.6 * MS),
    (16 * KB, 4 * KB, 16 * KB),
    (8 * KB, 32 * KB, 48 * KB),
    32 * KB,
    *LINKS,
)
HEADY = HEAVY._replace(forward=(0.05 * MS, 1 * MS, 3.6 * MS))
LONG = WIDE._replace(blocks=10, micro_batches=8, forward=(0.05 * MS, 1 * MS, 2.7 * MS))
# Job, room, and the best choice with its seconds: tests/course/test_balance_stages.py finds it by running every one.
Case = tuple[Job, int, Choice, float]
ROOMY: tuple[Case, ...] = (
    (HEAVY, 1200 * KB, ((5, 3, 3, 1), "pp dp"), 114.705e-3),
    (WIDE, 1200 * KB, ((4, 3, 3, 1), "dp pp"), 95.780e-3),
)
TIGHT: tuple[Case, ...] = (
    (HEADY, 780 * KB, ((3, 4, 4, 1), "pp dp"), 125.688e-3),
    (LONG, 480 * KB, ((3, 4, 3, 2), "dp pp"), 121.457e-3),
)


def _other(choice: Choice) -> Choice:
    """The same stages with the axes exchanged."""
    return choice[0], stages.ORDERS[1 - stages.ORDERS.index(choice[1])]


def _hint(job: Job, choice: Choice, best: Choice, seconds: float, exchanged: float) -> str:
    """The question that leads out of what makes this choice slow. exchanged: seconds with the axes exchanged."""
    if choice[1] != best[1] and exchanged < seconds:
        return (
            f"With the axes exchanged, the same stages take {1e3 * exchanged:.4g} ms. What crosses between the nodes "
            "in each order, how often, and who waits for it?"
        )
    mine, right = (stages.by_stage(job.blocks, one[0], job.forward) for one in (choice, best))
    busy = ", ".join(f"{1e3 * one:.3g}" for one in mine)
    told = f"The stages' forwards take {busy} ms per micro-batch. "
    if mine[-1] == max(mine):
        told += "The last one is the slowest: what does the head cost beside a block? "
    if max(mine) <= max(right):
        return told + (
            "The best choice has a stage that is as slow or slower. In the schedule, for whom does a slow stage wait, "
            "and who waits for it, when it is the first, and when it is the last?"
        )
    if mine[0] == min(mine):
        told += (
            "The first one is soon done: what does the embedding cost in time, whatever it weighs?"
        )
    return told.strip()


def _require(answer: Answer, cases: tuple[Case, ...]) -> None:
    said = call_each(answer, [(*job, room) for job, room, *_ in cases])
    chosen, where = [], []
    for (job, room, *_), got in zip(cases, said, strict=True):
        case = f"{job.blocks} blocks, a head of {job.forward[2] / job.forward[1]:.3g} blocks' time, room {room:,}"
        choice = (tuple(got[0]), got[1]) if _is_pair(got) else got
        require(
            choice in stages.choices(job.blocks),
            f"{case}: a choice is (layers of each stage, order), such as ((3, 3, 3, 3), 'pp dp'): {stages.STAGES} "
            f"stages of a layer at least, {job.blocks + 2} layers in all with embedding and head, and one of "
            f"{' and '.join(map(repr, stages.ORDERS))}; got {got!r}.",
        )
        chosen.append(choice)
        where.append(case)
    # What the answer chose, and the same stages in the other order, all in one launch.
    given = [
        (one, tuple(job))
        for (job, *_), choice in zip(cases, chosen, strict=True)
        for one in (choice, _other(choice))
    ]
    run = answer.run(stages.steps, stages.RANKS, given, **stages.options(*LINKS))
    found = [
        tuple(max(numbers) for numbers in zip(*by_rank, strict=True))
        for by_rank in zip(*run, strict=True)
    ]
    for at, ((job, room, best, least), choice, case) in enumerate(
        zip(cases, chosen, where, strict=True)
    ):
        (seconds, held), (exchanged, _) = found[2 * at : 2 * at + 2]
        require(
            held <= room,
            f"{case}: with {choice!r} the fullest rank holds {held:,.0f} bytes. What are an embedding's states beside "
            "a block's, and of how many micro-batches does each stage keep something at once?",
        )
        hint = _hint(job, choice, best, seconds, exchanged) if seconds > NEAR * least else ""
        used = f"{case}, of which the fullest rank uses {held:,.0f}"
        require_near_best(used, choice, 1e3 * seconds, 1e3 * least, "ms", hint)


def _is_pair(got: object) -> bool:
    return isinstance(got, (list, tuple)) and len(got) == 2 and isinstance(got[0], (list, tuple))


@BALANCE.check("where there is room", points=3)
def check_roomy(answer: Answer) -> None:
    """Stages of equal work are not the best ones, and each order is best once."""
    _require(answer, ROOMY)


@BALANCE.check("where there is little room", points=3)
def check_tight(answer: Answer) -> None:
    """The first stage has the embedding's states, and keeps the most micro-batches."""
    _require(answer, TIGHT)
