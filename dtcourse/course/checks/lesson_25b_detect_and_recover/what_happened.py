"""Records of runs, drawn anew each time: what has happened, and to which rank?"""

from __future__ import annotations

from dtcourse.course.checks.lesson_25b_detect_and_recover import run_records
from dtcourse.course.judging import Answer, Exercise, call_each, require_diagnosis
from dtcourse.course.judging.threads import one_thread

RUN = Exercise(
    "what_happened",
    lesson="25b",
    title="What has happened to this run?",
    takes=("what_happened",),
    target="40 of 40 runs of 3 to 6 ranks, drawn anew each time",
    forbidden=("dtcourse.fault_tolerance",),
)

# By what is wrong; of several ways in which it comes, what helps is another question.
HINTS = {
    "dead": "Which rank has said nothing for a while, and what is left of its process? A letter of /proc may stand for "
    "a process that has ended, and a rank that waits may wait for one that has.",
    "stopped": "Which rank has said nothing for a while, and can its process go on by itself? `man 5 proc` has the "
    "letters.",
    "hung": "Who waits, and who makes the others wait? Compare the time without a step with the steps before.",
    "preempted": "Why have all ranks left after one step, and which of them knew of it first?",
    "out of memory": "What did each rank say when it left, and whose end comes from another one's?",
    "damaged": "For each folder with a checkpoint's name: is all of it there, as its mark says? Is the mark itself?",
    "not finite": "In which step is a loss not finite for the first time, and on which ranks in that step?",
}
HEALTHY = {
    "past": "Of which start are the lines of the log, and what is so now?",
    "pause": "Do the ranks know why there is no step, and for how long that may be so?",
    "first step": "How long does a step of this run take? Does anybody know yet?",
    "silent": "How long is it silent, was it ever so before, and is its process there?",
    "long step": "How long did this run's steps take that all came to their end?",
    "returned": "With what words have the ranks left?",
    "spike": "A loss may rise and fall again.",
    "skipped": "What came after the step that was not finite?",
    "halved": "What came of the step for which the memory was not enough?",
    "in a save": "Which names do checkpoints have that count, and which folders are something else?",
}


def _require(answer: Answer, kinds: tuple[str, ...], healthy: tuple[str, ...]) -> None:
    """All ways of these kinds, once each, and some runs to which nothing has happened."""
    ways = [(kind, way) for kind in kinds for way in run_records.WAYS[kind]]
    ways += [("healthy", way) for way in healthy]
    with one_thread():
        cases = [run_records.drawn(kind, way) for kind, way in ways]
    said = call_each(answer, [(record,) for record, _ in cases], shuffled=True)
    for (kind, way), (record, right), got in zip(ways, cases, said, strict=True):
        case = f"A run of {len(record['ranks'])} ranks"
        hint = HEALTHY[way] if kind == "healthy" else HINTS[kind]
        require_diagnosis(case, got, right, hint, hint, ("hung", 2))


@RUN.check("a rank is gone, or stands still", points=3)
def check_silent(answer: Answer) -> None:
    """And one that is only late."""
    _require(answer, ("dead", "stopped"), ("past", "silent", "first step"))


@RUN.check("nobody gets on", points=4)
def check_hung(answer: Answer) -> None:
    """For a reason, or for none."""
    _require(answer, ("hung",), ("pause", "long step", "first step", "silent"))


@RUN.check("ranks have left", points=3)
def check_left(answer: Answer) -> None:
    """As they were asked to, or not."""
    _require(answer, ("preempted", "out of memory"), ("returned", "halved"))


@RUN.check("what the run is made of", points=3)
def check_data(answer: Answer) -> None:
    """Numbers, and files."""
    _require(answer, ("damaged", "not finite"), ("in a save", "spike", "skipped"))
