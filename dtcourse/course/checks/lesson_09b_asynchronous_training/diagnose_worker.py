"""Reports of an asynchronous server with a bound, drawn anew each time: which worker does what wrong?"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_worker",
    lesson="09b",
    title="Which worker is wrong, and how?",
    takes=("diagnose_worker",),
    target="24 of 24 reports of 3 to 5 workers, drawn anew each time",
)

Vector = list[float]
Diagnosis = tuple[str, int | None]
# The log, each push's gradient, the parameters before and after each update, curves and goals by worker, the bound.
Report = tuple[list[tuple[str, int]], list[Vector], list[Vector], list[Vector], list[Vector], int]
KINDS = ("copy", "not cleared", "pushes twice", "bound")
EACH = 3  # reports of a kind, and as many healthy ones beside them
SIZE, EVERYONE = 3, 5  # numbers of a gradient; pushes of the slowest worker


def _gradient(x: Sequence[float], curve: Vector, goal: Vector) -> Vector:
    return [c * (one - aim) for c, one, aim in zip(curve, x, goal, strict=True)]


def _report(kind: str, culprit: int, paces: Vector, ahead: int) -> Report:
    """What a server logs of workers of these seconds per gradient.

    The culprit of "bound" is answered although it is a step more ahead than allowed.
    """
    p = len(paces)
    curves = [[random.uniform(0.3, 1.5) for _ in range(SIZE)] for _ in paces]
    goals = [[random.gauss(0, 1) for _ in range(SIZE)] for _ in paces]
    x = [[random.gauss(0, 2) for _ in range(SIZE)]]
    lr = random.uniform(0.3, 0.6)
    log, gradients, waiting = [("pull", w) for w in range(p)], list[Vector](), list[int]()
    has, pushed, kept = [x[0]] * p, [0] * p, [[0.0] * SIZE for _ in paces]
    queue = [(seconds * random.uniform(0.9, 1.1), w) for w, seconds in enumerate(paces)]
    heapq.heapify(queue)
    while min(pushed) < EVERYONE:
        now, w = heapq.heappop(queue)
        mine = kind if w == culprit else "healthy"
        g = _gradient(has[w], curves[w], goals[w])
        if mine == "not cleared":
            g = kept[w] = [a + b for a, b in zip(kept[w], g, strict=True)]
        # Every second push of such a worker is the one before it again.
        if mine == "pushes twice" and pushed[w] % 2:
            g = kept[w]
        elif mine == "pushes twice":
            kept[w] = g
        log.append(("push", w))
        gradients.append(g)
        x.append([a - lr / p * b for a, b in zip(x[-1], g, strict=True)])
        pushed[w] += 1
        waiting.append(w)
        for other in list(waiting):
            allowed = ahead + (kind == "bound" and other == culprit)
            if pushed[other] - min(pushed) <= allowed:
                waiting.remove(other)
                log.append(("pull", other))
                if not (kind == "copy" and other == culprit):
                    has[other] = x[-1]
                seconds = paces[other] * random.uniform(0.9, 1.1)
                heapq.heappush(queue, (now + seconds, other))
    return log, gradients, x, curves, goals, ahead


def furthest(log: list[tuple[str, int]], p: int) -> list[int]:
    """By worker: how far ahead of the slowest it was when it was answered, at most."""
    pushed, most = [0] * p, [0] * p
    for what, w in log:
        if what == "push":
            pushed[w] += 1
        else:
            most[w] = max(most[w], pushed[w] - min(pushed))
    return most


def draw(kind: str) -> tuple[Report, Diagnosis]:
    """A report of that kind. In each the bound is reached."""
    while True:
        p, ahead = random.randint(3, 5), random.randint(1, 3)
        paces = [random.uniform(1, 1.6) for _ in range(p)]
        slow, culprit = random.sample(range(p), 2)
        paces[slow] = random.uniform(2.2, 3.0)
        if kind == "bound":
            paces[culprit] = 1.0
        report = _report(kind, culprit, paces, ahead)
        log = report[0]
        most = furthest(log, p)
        if kind == "bound":
            others = [far for w, far in enumerate(most) if w != culprit]
            right = most[culprit] == ahead + 1 and max(others) == ahead
        else:
            right = max(most) == ahead
        if right:
            return report, (kind, None if kind == "healthy" else culprit)


def _describe(
    log: Any, gradients: Any, x: Any, curves: list[Vector], goals: Any, ahead: int
) -> str:
    return f"A report of {plural(len(curves), 'worker')} and a bound of {plural(ahead, 'step')}"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=lambda one, _: draw(one),
        each=EACH,
        describe=_describe,
        healthy="Here each gradient is that of the parameters which its worker pulled last, and the bound holds. At "
        "which moment is a worker's distance from the slowest what the bound is about?",
        example=("copy", 2),
    )


@DIAGNOSE.check("a worker that computes from a copy", points=2)
def check_copy(answer: Answer) -> None:
    """It pulls, and never uses what it pulled."""
    _require(
        answer,
        "copy",
        "At which of all the parameters that there were would this worker's data have such a gradient?",
    )


@DIAGNOSE.check("a worker that does not clear its gradient", points=3)
def check_cleared(answer: Answer) -> None:
    """Each push has all before it in it."""
    _require(
        answer,
        "not cleared",
        "How does what this worker pushes differ from the gradient at what it pulled, push after push?",
    )


@DIAGNOSE.check("a worker that pushes twice", points=2)
def check_twice(answer: Answer) -> None:
    """The second time after another pull."""
    _require(
        answer,
        "pushes twice",
        "Which of this worker's pushes belong to what it pulled last, and which to what it pulled before?",
    )


@DIAGNOSE.check("a bound that does not bind", points=3)
def check_bound(answer: Answer) -> None:
    """For one worker."""
    _require(
        answer,
        "bound",
        "All gradients are right. How many steps was each worker ahead of the slowest when it was answered?",
    )
