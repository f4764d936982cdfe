"""What a search over all choices of a decision must say of the one that its check takes for right."""

from __future__ import annotations

from collections.abc import Hashable, Mapping


def require_clear_best(seconds: Mapping[Hashable, float], right: Hashable, margin: float) -> None:
    """It is the quickest of all that are possible, and each other takes over `margin` times as long."""
    best = min(seconds, key=seconds.__getitem__)
    assert best == right
    others = [each for choice, each in seconds.items() if choice != best]
    assert min(others) > margin * seconds[best], "right by more than the target allows"
