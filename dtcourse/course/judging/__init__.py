"""Judges the exercises. It answers in sentences that teach, and a student's code cannot reach it.

    framework.py   how an exercise's checks are written, found, and put to an answer
    asking.py      an exercise, its checks, and an answer as they see it; report.py what they said, and its points
    requirements.py require, CheckFailed: what a check says of an answer that is wrong
    outlines.py    what an exercise says of itself, without its checks, which import torch
    imports.py     what an answer's process imports before it runs
    verdicts.py    what many exercises ask, case by case: a diagnosis, a choice near the best one
    samples.py     what exercises on reading data ask: each sample once
    trials.py      a decision that is judged by running it: the answer may try some choices of a job
    own_ranks.py   the judge's own ranks, whose failure is no verdict
    simulated.py   the same for a job that runs in one process
    taking.py      what of a student's notebook an exercise takes: a function and what that needs
    forbidden.py   ready-made answers, which are refused by their text; ready_made.py where they are called
    course_names.py names of the course that no answer has use for; books.py where what they name is used
    defining.py    its statements become functions, in a rank
    runs.py        running an answer on ranks; sentences.py for what went wrong there
    tampering.py   whether an answer changed what measures it
    sandbox.py     the same in a process of its own, which only ever sends back plain data
    process.py     that process: started, spoken with, ended; serving.py is what runs in it
    bubblewrap.py  what of the machine it sees; limits.py: how much it may take
    attempts.py    what it reached for all the same, in words for its author

What is asked of each exercise is in ../checks/, a file each.

There are two sides. The judge holds the checks, makes the inputs, knows the expected values and decides; it
never executes a line of the answer and never unpickles what comes from there. The answer runs in ranks, and the
process that starts these executes no line of it either (serving.py). In a notebook, where a student checks their own
work, both sides are in one kernel.
"""

from __future__ import annotations

from dtcourse.course.judging.framework import (
    Answer,
    CheckFailed,
    Exercise,
    NotPassed,
    Report,
    check,
    exercises,
    judge,
    number,
    require,
    require_close,
)
from dtcourse.course.judging.verdicts import (
    call_each,
    place,
    require_diagnoses,
    require_diagnosis,
    require_kind,
    require_near_best,
    require_received,
    require_word,
)
from dtcourse.launch.each import Each

__all__ = [
    "Answer",
    "CheckFailed",
    "Each",
    "Exercise",
    "NotPassed",
    "Report",
    "call_each",
    "check",
    "exercises",
    "judge",
    "number",
    "place",
    "require",
    "require_close",
    "require_diagnoses",
    "require_diagnosis",
    "require_kind",
    "require_near_best",
    "require_received",
    "require_word",
]
