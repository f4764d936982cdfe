"""What the checks of an exercise said of an answer, and what that is worth."""

from __future__ import annotations

from dataclasses import dataclass, field

from dtcourse.course.judging.asking import Check, Exercise
from dtcourse.plural import plural


@dataclass
class Verdict:
    """What one check said: `sentence` is empty where it passed.

    lacks: titles of the checks that it needs and that have not passed: it holds, and counts for nothing yet
    """

    check: Check
    passed: bool
    sentence: str = ""
    lacks: tuple[str, ...] = ()

    @property
    def counts(self) -> bool:
        """Whether it is worth its points: only such a check gets a tick."""
        return self.passed and not self.lacks

    def __str__(self) -> str:
        mark = "✓" if self.counts else "○" if self.passed else "✗"
        sentence = self.sentence
        if self.passed and self.lacks:
            worth = plural(self.check.points, "point")
            sentence = f"0 of {worth} as long as this does not hold: {'; '.join(self.lacks)}."
        return "\n".join(
            [f"  {mark} {self.check.title}", *(f"      {line}" for line in sentence.splitlines())]
        )


@dataclass
class Report:
    """What all checks of one exercise said."""

    exercise: Exercise
    verdicts: list[Verdict] = field(default_factory=list)
    unfinished: str = ""
    refused: str = ""
    # Why there is no verdict: the judge itself has failed. Whatever a check has said before counts for nothing.
    unjudged: str = ""
    # Sentences on what the answer reached for outside its own folder: no verdict on what it computes.
    attempts: list[str] = field(default_factory=list)
    _final: list[Verdict] = field(default_factory=list, repr=False)

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return len(self.verdicts) == len(self.exercise.checks) and all(
            v.passed for v in self.verdicts
        )

    @property
    def points(self) -> int:
        """The points that were earned."""
        if self.refused or self.unjudged:
            return 0
        return sum(verdict.check.points for verdict in self.verdicts if verdict.counts)

    @property
    def possible(self) -> int:
        """The points that could be earned: none where the judge has failed."""
        return 0 if self.unjudged else self.exercise.points

    def settle(self, *, ended: bool = False) -> list[Verdict]:
        """The verdicts that are final now and were not before: those checks have been made that they need.

        ended: no more checks are made
        """
        passed = {v.check.function.__name__: v.passed for v in self.verdicts}
        titles = {one.function.__name__: one.title for one in self.exercise.checks}
        final = []
        for verdict in self.verdicts:
            needs = verdict.check.needs if verdict.passed else ()
            if any(verdict is one for one in self._final) or not (
                ended or passed.keys() >= set(needs)
            ):
                continue
            verdict.lacks = tuple(titles[name] for name in needs if not passed.get(name))
            final.append(verdict)
        self._final += final
        return final

    @property
    def head(self) -> str:
        """The first line."""
        return f"{self.exercise.name}: {self.exercise.title}"

    @property
    def tail(self) -> str:
        """What follows the verdicts."""
        if self.refused:
            return f"  refused: {self.refused}"
        if self.unjudged:
            return f"  ? {self.unjudged}"
        if self.unfinished:
            return f"  · {self.unfinished}\n  Target: {self.exercise.target}."
        left = self.exercise.checks[len(self.verdicts) :]
        good, total = sum(verdict.counts for verdict in self.verdicts), len(self.exercise.checks)
        lines = [f"  - {one.title} (not tried)" for one in left]
        lines += [
            f"  {good} of {plural(total, 'check')}, {self.points} of {plural(self.exercise.points, 'point')}."
        ]
        return "\n".join(lines)

    def __str__(self) -> str:
        attempts = [f"  ! {sentence}" for sentence in self.attempts]
        return "\n".join([self.head, *map(str, self.verdicts), *attempts, self.tail])
