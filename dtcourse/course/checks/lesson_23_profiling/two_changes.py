"""Which two of five changes make a job's steps shortest? Its trace is given; the job is run with the chosen ones."""

from __future__ import annotations

from typing import Any

from dtcourse.course.checks.lesson_23_profiling import changed_jobs
from dtcourse.course.checks.lesson_23_profiling.changed_jobs import CHANGES, Choice
from dtcourse.course.checks.lesson_23_profiling.drawn_jobs import Job
from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

TWO = Exercise(
    "two_changes",
    lesson="23",
    title="Two changes",
    takes=("two_changes",),
    launches=True,
    target="for 4 jobs, drawn anew, the steps take at most 1.02 times as long as with the best two changes",
    forbidden=("dtcourse.profiling", "dtcourse.emulation", "dtcourse.simulator", "dtcourse.launch"),
)

NEAR = 1.02


def _hint(job: Job, choice: Choice, best: Choice) -> str:
    """The question that leads out of what makes this choice worse."""
    missing = set(best) - set(choice)
    if choice == changed_jobs.most_alone(job):
        return (
            "Each of your two gains most where nothing else is changed. What would the trace look like after one of "
            "them, and what limits then?"
        )
    if "workers" in missing:
        return "When the rest is faster, is each batch there at the moment at which its step could begin?"
    if "card" in missing:
        return "For whose gradients do all ranks wait, and how long would these take on the fastest card?"
    if "keep" in missing:
        return "How often does each layer's forward run in a step, and what waits for the ones in backward?"
    if "buckets" in choice:
        return "What does a larger bucket wait for before it is sent, and what is left to hide it behind?"
    return (
        "With each two changes, when does each rank have each layer's gradient, when is each bucket through, and when "
        "can the next step begin?"
    )


def _chosen(got: Any) -> Choice:
    """An answer, in the order of the list."""
    named = isinstance(got, (list, tuple)) and len(set(map(str, got))) == 2
    choice = tuple(name for name in CHANGES if named and name in got)
    require(
        len(choice) == 2,
        f"A choice is two of {', '.join(map(repr, CHANGES))}, such as ('card', 'network'); got {got!r}.",
    )
    return choice


def _require(answer: Answer, jobs: list[Job]) -> None:
    given = [(rows, job.load) for job, rows in zip(jobs, changed_jobs.traces(jobs), strict=True)]
    chosen = [_chosen(got) for got in call_each(answer, given, shuffled=True)]
    # The best choice is the one that tests/course/test_changed_jobs.py finds by running every one.
    best = [changed_jobs.predicted_best(job) for job in jobs]
    run = [
        changed_jobs.changed(job, choice)
        for choices in (chosen, best)
        for job, choice in zip(jobs, choices, strict=True)
    ]
    seconds = changed_jobs.measured(run)
    for at, (job, choice) in enumerate(zip(jobs, chosen, strict=True)):
        require_near_best(
            f"A job of {changed_jobs.RANKS} ranks",
            choice,
            1e3 * seconds[at],
            1e3 * seconds[len(jobs) + at],
            "ms",
            _hint(job, choice, best[at]),
            NEAR,
        )


# The two jobs of a check have different best changes, so that no choice is right for both.


@TWO.check("the two that gain most alone", points=3)
def check_alone(answer: Answer) -> None:
    """They do not get into each other's way."""
    _require(answer, drawn_alone())


def drawn_alone() -> list[Job]:
    """Whoever overlooks what is repeated is right of the first one, and wrong of the second one by that alone."""
    two = [("card", "workers"), ("card", "keep")]
    return [
        changed_jobs.drawn(
            hidden=False,
            best=lambda pair: pair == two[0],
            unrepeated=lambda pair: pair == two[0],
        ),
        changed_jobs.drawn(
            hidden=False,
            best=lambda pair: pair == two[1],
            unrepeated=lambda pair: "card" in pair and pair != two[1],
        ),
    ]


@TWO.check("limits that lie behind others", points=4)
def check_hidden(answer: Answer) -> None:
    """The best two are not those that gain most alone."""
    _require(
        answer,
        [
            changed_jobs.drawn(hidden=True, best=lambda pair: "workers" in pair),
            changed_jobs.drawn(hidden=True, best=lambda pair: "workers" not in pair),
        ],
    )
