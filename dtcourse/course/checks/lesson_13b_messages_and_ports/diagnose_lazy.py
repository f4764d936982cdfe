"""Runs with lazy aggregation, drawn anew each time: do their ranks send when the rule says so, and what is wrong?"""

from __future__ import annotations

import random
from dataclasses import dataclass

from dtcourse.course.judging import Answer, Exercise, require_kind
from dtcourse.plural import plural

DIAGNOSE = Exercise(
    "diagnose_lazy",
    lesson="13b",
    title="Do the ranks send when they should?",
    takes=("diagnose_lazy",),
    target="24 of 24 runs of 3 to 5 ranks, drawn anew each time",
    forbidden=("dtcourse.communication_scheduling",),
)

Vector = list[float]
Diagnosis = tuple[str, int | None]
# Each rank's gradients by step, the model before each step and after the last, who sent in each step; lr, xi, D.
Run = tuple[list[list[Vector]], list[Vector], list[list[int]], float, float, int]
EACH = 3  # runs of a kind, and as many healthy ones beside them
CLEAR = 1e-6  # a change of the gradient is further than this from the limit, so that no rounding decides


@dataclass(frozen=True)
class Rule:
    """By what a rank decides. silent: a rank that sends once, and no more."""

    lr: float
    threshold: float
    history: int
    compares_with_last: bool = False
    silent: int | None = None


def square(a: Vector, b: Vector) -> float:
    """The squared distance."""
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def sends(
    rule: Rule, rank: int, gradients: list[Vector], sent: Vector | None, moved: list[float]
) -> tuple[bool, bool]:
    """Whether the rank sends the last of its gradients, and whether that is clear.

    sent: what it sent last;  moved: the model's squared movements so far
    """
    if sent is None:
        return True, True
    if rule.silent == rank:
        return False, True
    changed = square(gradients[-1], gradients[-2] if rule.compares_with_last else sent)
    limit = rule.threshold * sum(moved[-rule.history :]) / rule.lr**2
    return changed > limit, abs(changed - limit) > CLEAR * limit


def trained(curves: list[Vector], goals: list[Vector], rule: Rule, lr: float, steps: int) -> Run:
    """Gradient descent on sums of parabolas, one for each rank. The run's lr is not always the rule's."""
    ranks, size = len(curves), len(curves[0])
    gradients: list[list[Vector]] = [[] for _ in curves]
    kept: list[Vector | None] = [None] * ranks
    thetas: list[Vector] = [[0.0] * size]
    moved: list[float] = []
    who: list[list[int]] = []
    for _ in range(steps):
        who.append([])
        for rank in range(ranks):
            made = zip(curves[rank], thetas[-1], goals[rank], strict=True)
            gradients[rank].append([c * (x - goal) for c, x, goal in made])
            if sends(rule, rank, gradients[rank], kept[rank], moved)[0]:
                kept[rank] = gradients[rank][-1]
                who[-1].append(rank)
        mean = [sum(g[i] for g in kept if g is not None) / ranks for i in range(size)]
        thetas.append([x - lr * g for x, g in zip(thetas[-1], mean, strict=True)])
        moved.append(square(thetas[-1], thetas[-2]))
    return gradients, thetas, who, lr, rule.threshold, rule.history


def obeys(run: Run, rule: Rule) -> tuple[bool, bool]:
    """Whether each rank of the run sends just when that rule says so; and whether none of it is close."""
    gradients, thetas, who, *_ = run
    moved = [square(a, b) for a, b in zip(thetas[1:], thetas, strict=False)]
    clear = True
    for rank, own in enumerate(gradients):
        sent: Vector | None = None
        for step in range(len(who)):
            does, sure = sends(rule, rank, own[: step + 1], sent, moved[:step])
            clear = clear and sure
            if does != (rank in who[step]):
                return False, clear
            sent = own[step] if does else sent
    return True, clear


def rules(lr: float, threshold: float, history: int, ranks: int) -> dict[Diagnosis, list[Rule]]:
    """All that may be, by diagnosis."""
    return {
        ("healthy", None): [Rule(lr, threshold, history)],
        ("learning rate", None): [Rule(lr * k, threshold, history) for k in (0.1, 10)],
        ("one step", None): [Rule(lr, threshold, 1)],
        ("last gradient", None): [Rule(lr, threshold, history, compares_with_last=True)],
        **{("silent", r): [Rule(lr, threshold, history, silent=r)] for r in range(ranks)},
    }


def draw(kind: str) -> tuple[Run, Diagnosis]:
    """A run of that kind, which none of the other rules explains."""
    while True:
        ranks, size = random.randint(3, 5), 3
        curves = [[random.uniform(0.2, 1.0) * 1.6**r for _ in range(size)] for r in range(ranks)]
        goals = [[random.gauss(1.0, 1.0) for _ in range(size)] for _ in range(ranks)]
        lr = 1 / max(sum(c[i] for c in curves) / ranks for i in range(size))
        each = rules(lr, random.uniform(0.05, 0.2), random.randint(4, 8), ranks)
        diagnosis = random.choice([one for one in each if one[0] == kind])
        rule = random.choice(each[diagnosis])
        run = trained(curves, goals, rule, lr, random.randint(20, 30))
        run = (*run[:5], each["healthy", None][0].history)
        if obeys(run, rule) == (True, True) and not any(
            obeys(run, other)[0] for all_ in each.values() for other in all_ if other != rule
        ):
            return run, diagnosis


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=lambda one, _: draw(one),
        each=EACH,
        describe=lambda gradients, thetas, *_: (
            f"A run of {plural(len(gradients), 'rank')} and {plural(len(thetas) - 1, 'step')}"
        ),
        healthy="Here each rank sends when the rule says so. Which steps does it look back on, and in which power does "
        "the learning rate count?",
        example=("silent", 2),
    )


@DIAGNOSE.check("a rule for another learning rate", points=2)
def check_rate(answer: Answer) -> None:
    """All ranks send too seldom, or too often."""
    _require(
        answer,
        "learning rate",
        "With which learning rate would the rule explain who sends? It may be too small, and too large.",
    )


@DIAGNOSE.check("a rule that looks back on one step", points=2)
def check_window(answer: Answer) -> None:
    """And not on as many as it should."""
    _require(
        answer,
        "one step",
        "How far does the model move in all the steps on which the rule looks back?",
    )


@DIAGNOSE.check("a comparison with the step before", points=3)
def check_last(answer: Answer) -> None:
    """A gradient that changes slowly is never sent."""
    _require(
        answer,
        "last gradient",
        "Which gradient of a rank do the others still count, and how far is the new one from it?",
    )


@DIAGNOSE.check("a rank that is silent", points=3)
def check_silent(answer: Answer) -> None:
    """And which."""
    _require(
        answer,
        "silent",
        "Do all ranks break the rule, or one? Replay it for each rank by itself.",
    )
