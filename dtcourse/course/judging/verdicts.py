"""What many exercises ask of an answer, in the same words: a diagnosis, a choice near the best one."""

from __future__ import annotations

from typing import Any

from dtcourse.course.judging.requirements import require

NEAR = 1.01  # times what the best choice takes


def require_diagnosis(
    case: str, got: Any, right: tuple[str, Any], hint: str, healthy: str, example: tuple[str, Any]
) -> None:
    """That `got`, what is wrong and where, is `right`. The sentence gives `hint`,
    or `healthy` where all is right there.

    case: what was looked at, as "A run of 3 ranks"
    """
    require(
        isinstance(got, (list, tuple)) and len(got) == 2,
        f"A diagnosis is two things, such as {example!r}; got {got!r}.",
    )
    require(
        tuple(got) == right,
        f"{case}, which is {right!r}; you say {tuple(got)!r}. {healthy if right[0] == 'healthy' else hint}",
    )


def require_near_best(
    case: str, choice: Any, taken: float, least: float, unit: str, hint: str
) -> None:
    """That a choice takes at most NEAR times what the best one does, both in `unit`."""
    require(
        taken <= NEAR * least,
        f"{case}: {tuple(choice)!r} takes {taken:.4g} {unit}, and the best choice takes {least:.4g} {unit}. {hint}",
    )
