"""Why a layout is not the one to take, in words: its equation that fails, its bytes, or where its seconds go."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from dtcourse.planner.bounds import Bounds
from dtcourse.planner.layout import Batch, Layout
from dtcourse.planner.listing import Listing
from dtcourse.planner.pipelines import in_flight
from dtcourse.planner.prediction import ADVICE, Prediction
from dtcourse.planner.setting import Setting
from dtcourse.planner.software import Software
from dtcourse.planner.space import CHUNKED, Schedules, Slice
from dtcourse.planner.step import predict_likely

GIB = 2**30
SAME = 1e-9  # seconds that differ by less than this part are the same


def words(layout: Layout, batch: Batch, software: Software) -> str:
    """A layout in a line: what is 1, or as ever, is left out."""
    zero = f" (ZeRO {layout.stage})" if layout.stage else ""
    if layout.stage == 3 and not layout.reshard_after_forward:
        zero = " (ZeRO 3, parameters kept)"
    degrees = [
        f"{name} {degree}{zero if name == 'dp_shard' else ''}"
        for name in ("pp", "dp_replicate", "dp_shard", "cp", "tp", "ep")
        if (degree := getattr(layout, name)) > 1
    ]
    if layout.dp_shard == 1 and zero:
        degrees.append(zero.strip())
    if layout.sequence_parallel:
        degrees.append("sequence_parallel")
    if layout.pp > 1:
        name = layout.schedule if isinstance(layout.schedule, str) else "its own schedule"
        degrees.append(f"{name} x {layout.chunks}" if name in CHUNKED else name)
    degrees.append(f"micro-batch {batch.micro_batch}")
    return ", ".join([*degrees, f"recompute {software.recompute}"])


def why_not(
    asked: Setting, devices: int, best: Prediction, best_words: str, in_space: bool = False
) -> str:
    """What speaks against a layout, beside the best that was found. in_space: it is one of those that were searched."""
    try:
        found = predict_likely(asked, devices)
    except ValueError as error:
        return f"It is not possible: {error}"
    if not found.fits:
        return _too_large(asked, devices, found)
    ratio = found.seconds / best.seconds
    took = f"It takes {found.seconds:.4g} s a step"
    if abs(ratio - 1) < SAME:
        return f"{took}, as little as the best that was found ({best_words})."
    if ratio < 1:
        why = (
            "its bound was not among the lowest, so nothing was predicted of it (prove=True does)"
            if in_space
            else "it is not in the space that was searched"
        )
        return f"{took}, less than the best that was found, {best.seconds:.4g} s ({best_words}): {why}."
    kinds = {*found.parts, *best.parts}
    more = {kind: found.parts.get(kind, 0.0) - best.parts.get(kind, 0.0) for kind in kinds}
    order = sorted(kinds, key=lambda kind: -more[kind])
    told = [kind for kind in order if abs(more[kind]) > 0.005 * best.seconds] or order[:1]
    most = more[order[0]] > 0.5 * sum(each for each in more.values() if each > 0)
    return (
        f"{took}, {_longer(ratio)} the best's {best.seconds:.4g} s ({best_words}). The difference: "
        + ", ".join(f"{kind} {more[kind]:+.3g} s" for kind in told)
        + f". {'Most' if most else 'The largest part'} of what is more is {ADVICE[order[0]]}."
    )


def _longer(ratio: float) -> str:
    """By what part, or how many times as long."""
    if ratio >= 2:
        return f"{ratio:.3g} times"
    return f"{ratio - 1:.1%} more than" if ratio >= 1.0005 else "less than 0.1% more than"


def unsure(bounds: Bounds, asked: Setting) -> str:
    """What is said of a layout that fits at its likely bytes and not over all that is known as a range; else ""."""
    try:
        predict_likely(asked, bounds.devices)
    except ValueError:
        return ""
    if bounds.nbytes(asked) > asked.hardware.memory or bounds.surely(asked):
        return ""
    needed, there = zip(*bounds.at_ends(asked), strict=True)
    return (
        f"It may not fit: over what is only known as a range it needs {min(needed) / GIB:.1f} to "
        f"{max(needed) / GIB:.1f} GiB, and a device has {min(there) / GIB:.1f}."
    )


def nothing_fits(bounds: Bounds, listing: Listing) -> str:
    """What is missing: the layout that comes nearest, of those with the smallest micro-batch whose states are shared
    out most, and what it needs.
    """
    surely = bounds.sure and bool(bounds.ends)
    if surely:  # the last end has the slowest rates and the most bytes
        bounds = bounds.ends[-1]
    least, nearest = math.inf, bounds.base
    smallest = min(family.micro_batch for family in listing.slices)
    for family, slices in listing.slices.items():
        for each in slices if family.micro_batch == smallest else ():
            cut = max(
                each.cuts, key=lambda one: (one.stage, one.reshard_after_forward, one.dp_shard)
            )
            for schedules in each.alike():
                name, chunks = _leanest(schedules, each)
                s = bounds.setting(
                    family, pp=each.pp, schedule=name, chunks=chunks, **cut._asdict()
                )
                nbytes = bounds.nbytes(s)
                if nbytes < least:
                    least, nearest = nbytes, s
    line = words(nearest.layout, nearest.batch, nearest.software)
    wider = []
    if nearest.layout.stage < 3 and nearest.layout.data > 1:
        wider.append("ZeRO 3")
    if all(family.recompute != "full" for family in listing.slices):
        wider.append("recompute full")
    try_ = f"Try a space with {' and '.join(wider)}, or take" if wider else "Take"
    return (
        f"none of {listing.possible:,} possible layouts {'surely ' * surely}fits. The nearest ({line}): "
        f"{_needs(nearest, predict_likely(nearest))} {try_} devices with {math.ceil(10 * least / GIB) / 10:.1f} GiB, "
        "more devices, or a smaller model"
    )


def _leanest(schedules: Schedules, each: Slice) -> tuple[str, int]:
    """The one that keeps the fewest micro-batches on the first rank."""

    def kept(one: tuple[str, int]) -> float:
        return in_flight(one[0], each.pp, one[1], each.micro_batches)[0]

    return min(schedules, key=kept)


def _needs(s: Setting, found: Prediction) -> str:
    """Bytes of the rank that needs most, beside what there are."""
    each = [sum(stage.values()) for stage in found.memory]
    rank = max(range(len(each)), key=each.__getitem__)
    kinds = sorted(found.memory[rank].items(), key=lambda item: -item[1])
    largest = [(kind, nbytes) for kind, nbytes in kinds if nbytes > 0.02 * each[rank]]
    made_of = ", ".join(f"{kind} {nbytes / GIB:.1f}" for kind, nbytes in largest)
    limit = s.hardware.memory
    return (
        f"pipeline rank {rank} needs {each[rank] / GIB:.1f} GiB ({made_of}), and a device has {limit / GIB:.1f}: "
        f"{(each[rank] - limit) / GIB:.1f} too much."
    )


def _too_large(s: Setting, devices: int, found: Prediction) -> str:
    helps, tried, all_of_it = [], [], s
    for name, change in _leaner(s):
        try:
            other = predict_likely(change(s), devices)
            all_of_it = change(all_of_it)
        except ValueError:
            continue
        tried.append(f"{name} ({other.peak_bytes / GIB:.1f} GiB)")
        if other.fits:
            helps.append(f"{name} ({other.peak_bytes / GIB:.1f} GiB, {other.seconds:.4g} s)")
    said = f"It does not fit: {_needs(s, found)}"
    if helps:
        return f"{said} It would with {'; or with '.join(helps)}."
    if not tried:
        return f"{said} Recomputation, micro-batch and ZeRO are at their leanest: more of tp, pp or cp."
    alone = f"{said} Alone none of these is enough: {', '.join(tried)}"
    together = predict_likely(all_of_it, devices)
    enough = "; all together are" if together.fits and len(tried) > 1 else ""
    return f"{alone}{enough}."


def _leaner(s: Setting) -> Iterator[tuple[str, Callable[[Setting], Setting]]]:
    """One change each, of which a later one takes nothing of an earlier one back."""

    def of(part: str, **changes: Any) -> Callable[[Setting], Setting]:
        return lambda each: replace(each, **{part: replace(getattr(each, part), **changes)})

    for recompute in ("selective", "full"):
        if s.software.recompute not in (recompute, "full"):
            yield f"recompute {recompute}", of("software", recompute=recompute)
    if s.batch.micro_batch > 1:
        yield "micro-batch 1", of("batch", micro_batch=1)
    layout = s.layout
    if layout.tp > 1 and not layout.sequence_parallel:
        yield "sequence_parallel", of("layout", sequence_parallel=True)
    if layout.pp > 1 and layout.schedule != "1f1b":
        yield "schedule 1f1b", of("layout", schedule="1f1b", chunks=1)
    if layout.stage == 3 and not layout.reshard_after_forward:
        yield "reshard_after_forward", of("layout", reshard_after_forward=True)
    ranks = layout.dp_replicate * layout.dp_shard
    for stage in range(1, 4) if ranks * layout.cp > 1 else ():
        changes: dict[str, Any] = {"dp_replicate": 1, "dp_shard": ranks, "stage": stage}
        same = all(getattr(layout, name) == value for name, value in changes.items())
        if stage >= layout.stage and not same:
            yield f"dp_shard {ranks} (ZeRO {stage})", of("layout", **changes)
