"""Which checks a job runs, and how often: jobs with mistakes of three kinds, each run in one process."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from itertools import product

from dtcourse.course.judging import Answer, Exercise, require_near_best, trials
from dtcourse.course.judging.simulated import Simulated

CHECKS = Exercise(
    "choose_checks",
    lesson="24b",
    title="Which checks, and how often?",
    takes=("choose_checks",),
    target="in 3 jobs at most 1.1 times the time of the best of 27 choices; at most 4 of them tried",
    forbidden=("dtcourse.debugging",),
)

RANKS, STEPS, STEP, MOST, NEAR = 2, 96, 1.0, 4, 1.1
NAMES = ("replicas", "gradients", "samples")
KINDS = ("flip", "hook", "reads")
EVERY = (0, 4, 16)  # steps between two checks; 0: only after the last step
CHOICES: list[trials.Choice] = list(product(EVERY, repeat=len(NAMES)))
LAST = 300  # the step after which nothing happens any more, so that each job ends
PRIME = 2**31 - 1


@dataclass
class State:
    """Of a rank: a checksum of its weights, whether its gradients are averaged, whose samples it reads."""

    weights: int = 1
    averaged: bool = True
    reads: int = 0
    used: int = 0  # a checksum of the gradients of the last step

    def step(self, number: int, rank: int) -> None:
        """From these samples to the next weights, all in whole numbers."""
        self.used = number if self.averaged else number * RANKS + rank
        self.weights = (31 * self.weights + self.used) % PRIME

    def spoil(self, kind: str, other: int) -> None:
        """Something happens to this rank, unseen."""
        if kind == "flip":
            self.weights = (self.weights + 1) % PRIME
        elif kind == "hook":
            self.averaged = False
        else:
            self.reads = other


Mistakes = dict[int, tuple[str, int]]  # {step performed: (kind, rank)}


def job(
    choice: tuple[int, ...],
    steps: int,
    step_seconds: float,
    check_seconds: tuple[float, ...],
    mistakes: Mistakes,
) -> tuple[float, ...]:
    """The seconds of a job of all ranks, and how often each check has found something.

    It ends when all steps are done and none finds anything any more.
    """
    states = [State(reads=rank) for rank in range(RANKS)]
    seconds, performed, done, found = 0.0, 0, 0, [0] * len(choice)
    # {steps done: (the ranks, what all checks would find there)}: what a copy holds can be looked at later as well.
    kept: dict[int, tuple[list[State], set[int]]] = {0: (states, set())}
    while True:
        seconds += step_seconds
        performed, done, states = performed + 1, done + 1, [replace(one) for one in states]
        kind, who = mistakes.get(performed, ("", -1))
        for rank, state in enumerate(states):
            if who == rank:
                # Before the step, so that each check can see it from this step on.
                state.spoil(kind, 1 - rank)
            state.step(done, rank)
        due = {
            i for i, every in enumerate(choice) if done == steps or (every and done % every == 0)
        }
        if not due:
            continue
        seconds += sum(check_seconds[i] for i in due)
        # What each check compares. Weights and gradients are to be alike on all ranks, and samples are not.
        compared = zip(*((one.weights, one.used, one.reads) for one in states), strict=True)
        alike = [len(set(of_ranks)) == 1 for of_ranks in compared]
        wrong = {i for i, name in enumerate(NAMES) if alike[i] == (name == "samples")}
        bad = wrong & due
        if not bad:
            kept[done] = states, wrong
            if done == steps:
                return seconds, *map(float, found)
            continue
        for i in bad:
            found[i] += 1
        # All go back to the last copy in which these checks find nothing.
        done = max(at for at, (_, those) in kept.items() if not those & bad)
        kept = {at: copy for at, copy in kept.items() if at <= done}
        states, _ = kept[done]


def case(means: tuple[int, int, int], check_seconds: tuple[float, ...]) -> Simulated:
    """A mistake of each kind comes after about so many steps, drawn anew; 0: never."""
    mistakes: Mistakes = {}
    for kind, mean in zip(KINDS, means, strict=True):
        at = 0
        while mean and at < LAST:
            at += random.randint(mean - mean // 4, mean + mean // 4)
            mistakes[at] = (kind, 1)  # a second one of a kind, of the other rank, could undo it
    told = (STEPS, STEP, dict(zip(NAMES, check_seconds, strict=True)))
    given = (STEPS, STEP, check_seconds, mistakes)
    return Simulated(job, CHOICES, given, told, MOST, beforehand=True)


PRACTICE = case((30, 0, 20), (1.0, 1.0, 0.5))

SELDOM = {
    "replicas": "How many steps are done again for each mistake that only `replicas` sees, and how often is that?",
    "gradients": "How many steps are done again for each mistake that `gradients` sees, and what else sees it?",
    "samples": "How many steps are done again for each mistake that only `samples` sees, and how often is that?",
}
OFTEN = "What does `{}` find in this job that no other check finds, and what do all its looks cost?"


def _hint(choice: trials.Choice, best: trials.Choice, seconds: dict[trials.Choice, float]) -> str:
    """About the one check by which most is lost: the one that gains most if it alone is as often as in the best."""
    changed = {
        i: (*choice[:i], best[i], *choice[i + 1 :])
        for i in range(len(choice))
        if choice[i] != best[i]
    }
    if not changed:
        return ""
    # Only after the last step is the least often.
    too_often = [i for i in changed if (choice[i] or STEPS) < (best[i] or STEPS)]
    i = min(changed, key=lambda i: seconds[changed[i]])
    if seconds[changed[i]] >= seconds[choice] and too_often:
        # One check stands for another: neither gains alone.
        i = too_often[0]
    return OFTEN.format(NAMES[i]) if i in too_often else SELDOM[NAMES[i]]


def _require(answer: Answer, means: tuple[int, int, int], check_seconds: tuple[float, ...]) -> None:
    drawn = case(means, check_seconds)
    tried = drawn.tried(answer)
    costs = ", ".join(f"`{n}` {s:g} s" for n, s in zip(NAMES, check_seconds, strict=True))
    where = f"Looks take: {costs}; a step {STEP:g} s"
    taken, *_ = trials.require_possible(
        where, tried, (16, 0, 4), "Of each check, one of " + ", ".join(map(str, EVERY)) + "."
    )
    seconds = {choice: taken for choice, (taken, *_) in drawn.search().items()}
    best = min(seconds, key=seconds.__getitem__)
    hint = _hint(tried.choice, best, seconds)
    require_near_best(where, tried.choice, taken, seconds[best], "s", hint, near=NEAR)


@CHECKS.check("weights and gradients", points=3)
def check_both(answer: Answer) -> None:
    """One check sees two kinds of mistakes."""
    _require(answer, (14, 14, 0), (0.5, 2.0, 2.0))


@CHECKS.check("gradients and samples", points=3)
def check_dear(answer: Answer) -> None:
    """Comparing all weights is dear."""
    _require(answer, (0, 12, 12), (4.0, 0.5, 0.5))


@CHECKS.check("weights and samples", points=3)
def check_apart(answer: Answer) -> None:
    """No gradient is ever wrong."""
    _require(answer, (10, 0, 12), (0.5, 1.0, 0.5))
