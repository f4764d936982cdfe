"""Verdicts in words: rank, verdict, since when, last step, what it does now."""

from __future__ import annotations

from collections.abc import Sequence

from dtcourse.fault_tolerance.watching import verdicts as v
from dtcourse.fault_tolerance.watching.beat import Beat
from dtcourse.plural import plural


def sentence(verdict: v.Verdict) -> str:
    """One rank's."""
    beat, seconds, rank = verdict.seen.beat, verdict.seen.silent, f"rank {verdict.rank}"
    if beat is None:
        if verdict.kind == v.NEVER:
            return f"{rank} never began: no beat of it has come in {seconds:.1f} s"
        return f"{rank} has not begun to beat yet ({seconds:.1f} s)"
    last = _last_step(beat)
    silent = f"no beat for {seconds:.1f} s, where one comes every {beat.interval:g} s"
    process = f"its process ({beat.process.pid})"
    texts = {
        v.DEAD: f"{rank} is dead: {silent}, and {process} is gone; {last}",
        v.STOPPED: f"{rank} is stopped: {silent}, and {process} is in state T, as after SIGSTOP; "
        f"{last}; SIGCONT lets it go on",
        v.DEAD_OR_STOPPED: f"{rank} is dead or stopped: {silent}, and its machine is another one; {last}",
        v.SILENT: f"{rank} is silent: {silent}, but {process} runs; {last}",
        v.LEFT: f"{rank} has left: it {beat.left}; {last}",
        v.PAUSED: f"{rank} is {beat.pausing} for {beat.paused + seconds:.1f} s, as announced; {last}",
        v.STARTING: f"{rank} is before its first step for {verdict.idle:.1f} s: how long one takes is not known "
        f"yet, so a hang could not be told; it {beat.doing}",
        v.RUNS: f"{rank} runs; {last}, {verdict.idle:.1f} s ago",
        v.WAITS: f"{rank} waits for another rank: it {beat.doing}; {last}, {verdict.idle:.1f} s ago",
    }
    text = _hung(verdict, beat) if verdict.kind == v.HUNG else texts[verdict.kind]
    if beat.unsaid:
        text += f" ({plural(beat.unsaid, 'beat')} before its last could not be written)"
    return text


def _hung(verdict: v.Verdict, beat: Beat) -> str:
    rank, last = f"rank {verdict.rank}", _last_step(beat)
    if verdict.seen.silent > beat.silence_limit:
        silent = f"{verdict.seen.silent:.1f} s"
        return (
            f"{rank} is hung: its process ({beat.process.pid}) runs, and has not beaten for {silent}, "
            f"as when compiled code holds Python's lock; {last}; when it last beat it {beat.doing}"
        )
    if beat.pausing:
        return (
            f"{rank} is hung: it is {beat.pausing} for {beat.paused:.1f} s, and {beat.pause_limit:g} s were announced; "
            f"{last}; it {beat.doing}"
        )
    longest = max(beat.longest, default=0.0)
    return (
        f"{rank} is hung: it beats, and has made no step for {verdict.idle:.1f} s (its longest took {longest:.2f} s; "
        f"the limit is {beat.step_limit:.1f} s); {last}; it {beat.doing}"
    )


def _last_step(beat: Beat) -> str:
    return "it has done no step" if beat.step is None else f"its last step was {beat.step}"


def summary(verdicts: Sequence[v.Verdict]) -> str:
    """All that is wrong, the reason first; one line where nothing is."""
    first = v.reasons(verdicts)
    if not first:
        kinds = [one.kind for one in verdicts]
        counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
        return f"no fault in {plural(len(verdicts), 'rank')}: {counts}"
    others = [one for one in verdicts if one.is_fault and one not in first]
    return "\n".join(
        [sentence(one) for one in first] + [f"after it, {sentence(one)}" for one in others]
    )
