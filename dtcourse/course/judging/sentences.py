"""A sentence for each way in which an answer's ranks can go wrong."""

from __future__ import annotations

import re
from typing import Any

from dtcourse.course.judging.requirements import CheckFailed, Refused, Stopped, unwritten
from dtcourse.course.reproducible import scrub
from dtcourse.plural import plural


def waiting(error: Any, names: str, world_size: int, limit: float) -> str:
    """Of a RankTimeout. names: the answer's functions;  limit: seconds"""
    from dtcourse.launch import deadlock, failures

    places = [f"  rank {rank} {scrub(where)}" for rank, where in sorted(error.waiting.items())]
    # By their stacks, not by names: an answer may be called all_gather, and loop.
    stacks = [failure.details for failure in error.failures if failure.details]
    why = (
        "They wait for each other: every receive needs its send, and all ranks call the same collectives in the "
        "same order."
        if stacks and all(map(deadlock.waits_for_a_rank, stacks))
        else "Does a loop in it ever end?"
    )
    if any(".wait(" in place for place in places):
        why += f" {failures.WAIT_ONCE}"
    return (
        f"{names} had not returned after {limit:g} s on {plural(world_size, 'rank')}; the ranks were still waiting "
        f"or working:\n" + "\n".join(places) + f"\n{why}"
    )


def failure(error: Any, names: str, world_size: int) -> CheckFailed:
    """Of a RankFailure."""
    from dtcourse.launch import leaving

    first = error.failures[0]
    who = (
        f"With {world_size} ranks, rank {first.rank}" if world_size > 1 else "Called on its own, it"
    )
    if first.summary in (leaving.TWICE, leaving.EARLY):
        return Refused(f"the answer speaks for its rank: rank {first.rank} {first.summary}")
    if "NotImplementedError" in first.summary:
        return unwritten(names)
    if not first.summary.startswith("raised"):
        return Stopped(f"{who} {first.summary}: {names} ends its own process.")
    ours = r"raised (?:[\w.]*\.)?(CheckFailed|Refused): (.*)"
    if match := re.match(ours, first.summary, re.DOTALL):
        return Refused(match[2]) if match[1] == "Refused" else CheckFailed(match[2])
    lines = re.findall(
        r'(cell \d+ of your notebook)"?, line (\d+)|(Cell In\[\d+\])[^\n]*?line (\d+)',
        first.details,
    )
    where = ""
    if lines:
        cell, line = (part for part in lines[-1] if part)
        where = f" ({cell}, line {line})"
    return CheckFailed(f"{who} {scrub(first.summary)}{where}.")
