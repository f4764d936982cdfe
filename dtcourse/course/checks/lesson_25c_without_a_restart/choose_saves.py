"""How often to copy into a neighbour's memory, and how often to a file: judged by runs that fail."""

from __future__ import annotations

from dtcourse.course.checks.lesson_25c_without_a_restart.failing_runs import CHOICES, Job, mean
from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_saves",
    lesson="25c",
    title="How often to memory, how often to a file",
    takes=("choose_saves",),
    target="for 6 jobs a choice whose simulated runs take at most 1.03 times as long as those of the best of 121",
    forbidden=("dtcourse.fault_tolerance",),
)

NEAR = 1.03
# Each with the best choice, (steps between copies, steps between files): a test finds them by running all.
BEST: dict[Job, tuple[int, int]] = {
    Job(copy=0.5, file=40, between=800, nodes=0.05, again=20, from_file=120): (32, 1024),
    Job(copy=0.2, file=30, between=300, nodes=0.02, again=10, from_file=60): (8, 1024),
    Job(copy=6, file=6, between=1500, nodes=0.6, again=30, from_file=60): (2048, 128),
    Job(copy=5, file=5, between=600, nodes=0.5, again=20, from_file=40): (2048, 64),
    Job(copy=1, file=200, between=4000, nodes=0.1, again=50, from_file=300): (128, 2048),
    Job(copy=8, file=60, between=200, nodes=0.3, again=10, from_file=30): (64, 256),
}
CHEAP, ALIKE, DEAR = (list(BEST)[first : first + 2] for first in (0, 2, 4))


def _require(answer: Answer, jobs: list[Job], hint: str) -> None:
    asked = [(job.copy, job.file, job.between, job.nodes, job.again, job.from_file) for job in jobs]
    for job, got in zip(jobs, call_each(answer, asked), strict=True):
        where = (
            f"A copy takes {job.copy:g} steps' time and a file {job.file:g}, a failure comes every {job.between:g}, "
            f"and {job.nodes:.0%} of them take a node"
        )
        right = isinstance(got, (list, tuple)) and len(got) == 2
        require(
            right and all(type(one) is int and one in CHOICES for one in got),
            f"{where}: a choice is two numbers, such as (32, 256), each one of {', '.join(map(str, CHOICES))}; got "
            f"{got!r}.",
        )
        require_near_best(
            where, got, mean(job, *got), mean(job, *BEST[job]), "steps", hint, near=NEAR
        )


@CHOOSE.check("copies are cheap", points=3)
def check_cheap(answer: Answer) -> None:
    """Few failures need the file."""
    _require(answer, CHEAP, "Which failures does a file help against, and how often do those come?")


@CHOOSE.check("a copy costs what a file costs", points=3)
def check_alike(answer: Answer) -> None:
    """Then a copy does nothing that a file does not."""
    _require(
        answer, ALIKE, "What would be lost with a process if there were no copies at all, and what do the copies cost?"
    )  # fmt: skip


@CHOOSE.check("files are dear", points=3)
def check_dear(answer: Answer) -> None:
    """And failures may be frequent."""
    _require(
        answer,
        DEAR,
        "How many steps are lost with a process, how many with a node, and what does each save cost?",
    )
