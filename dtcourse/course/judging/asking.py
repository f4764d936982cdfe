"""What is asked: an exercise, its checks, and an answer as they see it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol


class Answer(Protocol):
    """A student's answer as a check sees it: something to run, never something to look into."""

    def run(self, step: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> Any:
        """step(answer's functions..., *args) on ranks: results by rank, .seconds, .traffic, .timeline.

        Options are those of `launch`: timeout (20 s), backend, record, nodes, network, env. A failure, a
        deadlock or a time limit raises CheckFailed with a sentence. watched: see Exercise; `judge` gives it.
        An argument Each([...]) holds each rank's own, which no other rank is sent (launch/each.py). known_to: the ranks
        that a graded answer is known to; on the others its functions are None, and nothing of it has ever run.
        """
        ...

    def call(
        self, step: Callable[..., Any], *args: Any, timeout: float = 20.0, **options: Any
    ) -> Any:
        """step(answer's functions..., *args) in one process without a group: what it returned. watched: as in run."""
        ...


class Watched:
    """An answer each of whose runs is watched for calls of what is ready-made; see Exercise.watched."""

    def __init__(self, answer: Answer, watched: tuple[str, ...]) -> None:
        self._answer, self._watched = answer, watched

    def run(self, step: Callable[..., Any], world_size: int, *args: Any, **options: Any) -> Any:
        """See Answer.run."""
        return self._answer.run(step, world_size, *args, watched=self._watched, **options)

    def call(
        self, step: Callable[..., Any], *args: Any, timeout: float = 20.0, **options: Any
    ) -> Any:
        """See Answer.call."""
        return self._answer.call(step, *args, timeout=timeout, watched=self._watched, **options)


@dataclass(frozen=True)
class Check:
    """One thing that is asked of an answer.

    needs: names of the functions of checks of the same exercise, without which this one is worth no point: what sends
           nothing stays below every limit of bytes
    """

    title: str
    points: int
    function: Callable[[Answer], None]
    needs: tuple[str, ...] = ()


@dataclass
class Exercise:
    """One exercise: what it is called, what it takes from the notebook, its target in numbers, its checks.

    forbidden: modules and functions that do what is asked, such as "torch.utils.checkpoint"; an answer that names one
               of them is refused (forbidden.py)
    watched:   those of them whose calls are seen while an answer runs, whatever it calls them (ready_made.py); nothing
               that a check's own step, PyTorch or the emulation calls by itself
    launches:  whether its checks launch ranks of the judge's own, beside the answer's
    """

    name: str
    lesson: str
    title: str
    takes: tuple[str, ...]
    target: str
    forbidden: tuple[str, ...] = ()
    watched: tuple[str, ...] = ()
    launches: bool = False
    checks: list[Check] = field(default_factory=list)

    def __post_init__(self) -> None:
        if isinstance(self.takes, str) or not self.takes:
            raise ValueError(
                f"{self.name}: takes is a tuple of function names, such as ('{self.name}',)"
            )
        if not re.search(r"\d", self.target):
            raise ValueError(f"{self.name}: a target is stated in numbers; got {self.target!r}")
        if unsaid := set(self.watched) - set(self.forbidden):
            raise ValueError(
                f"{self.name}: {', '.join(sorted(unsaid))} is watched and not forbidden"
            )

    @property
    def points(self) -> int:
        """The points of all its checks."""
        return sum(check.points for check in self.checks)

    @property
    def modules(self) -> list[str]:
        """Where its checks are."""
        return list({check.function.__module__: None for check in self.checks})

    def load(self) -> Exercise:
        """Itself; of an outline, the exercise (outlines.py)."""
        return self

    def check(
        self, title: str, points: int = 1, needs: tuple[str, ...] = ()
    ) -> Callable[[Callable], Callable]:
        """A decorator: add a check to this exercise. needs: see Check."""

        def add(function: Callable[[Answer], None]) -> Callable[[Answer], None]:
            self.checks.append(Check(title, points, function, needs))
            return function

        return add
