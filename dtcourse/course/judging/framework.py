"""How a lesson's checks are written, and how they are put to an answer.

SHIFT = Exercise("ring_shift", lesson="02", title="Pass it to the right", takes=("ring_shift",),
                 target="one message per rank, no deadlock at 2, 3 and 4 ranks")

def _shift(ring_shift, own):                          # in every rank
    return ring_shift(own)

@SHIFT.check("each rank gets its left neighbour's tensor", points=3)
def check_values(answer):                             # in the judge
    values = [torch.randn(5) for _ in range(3)]       # other ones each time, whatever was seeded before
    run = answer.run(_shift, 3, Each(values))         # to each rank its own alone
    require(torch.equal(run[1], values[0]), "rank 1 should hold what rank 0 had")
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from dtcourse.course.judging.asking import Answer, Check, Exercise, Watched
from dtcourse.course.judging.drawing import drawing
from dtcourse.course.judging.report import Report, Verdict
from dtcourse.course.judging.requirements import (
    CheckFailed,
    Refused,
    Stopped,
    Unfinished,
    Unjudged,
    number,
    require,
    require_close,
)
from dtcourse.plural import plural

__all__ = [
    "Answer",
    "Check",
    "CheckFailed",
    "Exercise",
    "NotPassed",
    "Refused",
    "Report",
    "Stopped",
    "Unfinished",
    "Unjudged",
    "Verdict",
    "check",
    "exercises",
    "judge",
    "modules",
    "number",
    "require",
    "require_close",
]


@cache
def exercises(lesson: str | None = None, name: str | None = None) -> dict[str, Exercise]:
    """Every exercise by name, of one lesson or of all, in the order of their lessons' notebooks; or one of a lesson.

    Raises ValueError if two exercises have one name, one stands in another lesson's folder or in a file of another
    name, or a check needs one that there is not.
    """
    found: dict[str, Exercise] = {}
    for path, of in modules(lesson).items():
        *_, last = path.split(".")
        if name not in (None, last):
            continue
        (one,) = (
            x for x in vars(importlib.import_module(path)).values() if isinstance(x, Exercise)
        )
        if (one.lesson, one.name) != (of, last) or last in found:
            raise ValueError(f"{path}: {one.name} is in use, or of lesson {one.lesson}")
        known = {check.function.__name__ for check in one.checks}
        if unknown := {need for check in one.checks for need in check.needs} - known:
            raise ValueError(f"{last}: there is no check {', '.join(unknown)}")
        found[last] = one
    return found


def modules(lesson: str | None = None) -> dict[str, str]:
    """{module of an exercise: its lesson}, of one lesson or of all. None of them is imported."""
    import dtcourse.course.checks as package

    found: dict[str, str] = {}
    for folder in sorted(pkgutil.iter_modules(package.__path__), key=lambda folder: folder.name):
        match = re.fullmatch(r"lesson_(\d\d[a-z]?)_\w+", folder.name)
        if match and lesson in (None, match[1]):
            path = f"{package.__name__}.{folder.name}"
            found |= {f"{path}.{e}": match[1] for e in importlib.import_module(path).EXERCISES}
    return found


def judge(
    exercise: Exercise,
    answer: Answer,
    on_check: Callable[[Check], None] | None = None,
    on_verdict: Callable[[Verdict], None] | None = None,
) -> Report:
    """Put every check of an exercise to an answer; tells of each check before and after it.

    on_verdict: told of a check that needs another one when that has been made, too

    Where the judge itself fails (Unjudged), no further check is made: it would wait for the same failure once more.
    """

    def tell(verdicts: list[Verdict]) -> None:
        if on_verdict:
            for verdict in verdicts:
                on_verdict(verdict)

    if exercise.watched:
        answer = Watched(answer, exercise.watched)
    report = Report(exercise)
    for one in exercise.checks:
        if on_check:
            on_check(one)
        stop = False
        try:
            with drawing(None):
                one.function(answer)
        except Unfinished as error:
            report.unfinished = str(error)
            break
        except Refused as error:
            report.refused = str(error)
            break
        except Unjudged as error:
            report.unjudged = str(error)
            break
        except CheckFailed as error:
            verdict = Verdict(one, False, str(error))
            stop = isinstance(error, Stopped)
        except Exception as error:  # None for a tensor, a wrong shape: the check could not read it
            verdict = Verdict(one, False, _unreadable(error))
        else:
            verdict = Verdict(one, True)
        report.verdicts.append(verdict)
        tell(report.settle())
        if stop:
            break
    tell(report.settle(ended=True))
    return report


def _unreadable(error: Exception) -> str:
    said = " ".join(str(error).split())[:300]
    if "NoneType" in said:
        return "Your function returned None: is its `return` missing?"
    return (
        f"What came back could not be compared ({type(error).__name__}: {said}). "
        "Does your function return what the exercise asks for?"
    )


class NotPassed(CheckFailed):
    """Raised by `check` in a notebook after it has printed why; shown as one line, without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


def check(name: str | Callable[..., Any], *answers: Any) -> None:
    """Check an exercise in a notebook: print what each check says.

        check("ring_shift", ring_shift)
        check(ring_shift)                   # the exercise that takes a function of this name

    Raises NotPassed if a check fails, the answer is refused or could not be judged, so that the cell fails too. Raises
    ValueError for an exercise that there is not, or the wrong number of functions.
    """
    from dtcourse.course.judging import forbidden
    from dtcourse.course.judging.runs import InKernel
    from dtcourse.launch import standby

    if callable(name):
        answers = (name, *answers)
        names = tuple(getattr(one, "__name__", "?") for one in answers)
        matching = [one for one in exercises().values() if one.takes == names]
        if not matching:
            raise ValueError(
                f"no exercise takes {', '.join(names)}: give its name, check('...', {names[0]})"
            )
        exercise = matching[0]
    elif name in exercises():
        exercise = exercises()[name]
    else:
        import difflib

        near = difflib.get_close_matches(str(name), exercises(), 1)
        raise ValueError(
            f"there is no exercise {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        )
    if len(answers) != len(exercise.takes):
        raise ValueError(
            f"check({exercise.name!r}, {', '.join(exercise.takes)}): got {plural(len(answers), 'answer')}"
        )
    answer = InKernel(dict(zip(exercise.takes, answers, strict=True)))
    print(Report(exercise).head, flush=True)
    if refused := forbidden.in_this_notebook(exercise):
        print(Report(exercise, refused=refused).tail)
        raise NotPassed("Refused: see above.")
    # Each line when its check is done: some launch many ranks, and a deadlock takes its time limit.
    with standby.keeping():
        report = judge(exercise, answer, on_verdict=lambda verdict: print(verdict, flush=True))
    print(report.tail)
    if report.unjudged:
        raise NotPassed("Not judged: run this cell again.")
    if not report.passed:
        raise NotPassed(
            "not written yet" if report.unfinished else "Not there yet: see the lines marked ✗."
        )
