"""Why a layout is not the one to take, in words: its equation that fails, its bytes, or where its seconds go."""

from __future__ import annotations

import math
from collections.abc import Iterator
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


def why_not(asked: Setting, devices: int, best: Prediction, best_words: str) -> str:
    """What speaks against a layout, beside the best that was found."""
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
        return (
            f"{took}, less than the best that was found, {best.seconds:.4g} s ({best_words}): it is not in the space "
            "that was searched, or more of this had to be predicted (prove=True)."
        )
    kinds = {*found.parts, *best.parts}
    more = {kind: found.parts.get(kind, 0.0) - best.parts.get(kind, 0.0) for kind in kinds}
    order = sorted(kinds, key=lambda kind: -more[kind])
    told = [kind for kind in order if abs(more[kind]) > 0.005 * best.seconds] or order[:1]
    return (
        f"{took}, {ratio:.3g} times the best's {best.seconds:.4g} s ({best_words}). The difference: "
        + ", ".join(f"{kind} {more[kind]:+.3g} s" for kind in told)
        + f". Most of it is {ADVICE[order[0]]}."
    )


def nothing_fits(bounds: Bounds, listing: Listing) -> str:
    """What is missing: the layout that comes nearest, of those with the smallest micro-batch whose states are shared
    out most, and what it needs.
    """
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
    return (
        f"none of {listing.possible:,} possible layouts fits. The nearest ({line}): "
        f"{_needs(nearest, predict_likely(nearest))} Take devices with {least / GIB:.1f} GiB, more devices, or a "
        "smaller model"
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
    helps = []
    for name, changed in _leaner(s):
        try:
            other = predict_likely(changed, devices)
        except ValueError:
            continue
        if other.fits:
            helps.append(f"{name} ({other.peak_bytes / GIB:.1f} GiB, {other.seconds:.4g} s)")
    would = (
        f"It would with {'; or with '.join(helps)}."
        if helps
        else "Neither recomputation, nor a micro-batch of 1, nor more of ZeRO is enough alone."
    )
    return f"It does not fit: {_needs(s, found)} {would}"


def _leaner(s: Setting) -> Iterator[tuple[str, Setting]]:
    """One change each."""
    for recompute in ("selective", "full"):
        if s.software.recompute not in (recompute, "full"):
            software = replace(s.software, recompute=recompute)
            yield f"recompute {recompute}", replace(s, software=software)
    if s.batch.micro_batch > 1:
        yield "micro-batch 1", replace(s, batch=replace(s.batch, micro_batch=1))
    ranks = s.layout.dp_replicate * s.layout.dp_shard
    for stage in range(1, 4) if ranks * s.layout.cp > 1 else ():
        shared: dict[str, Any] = {"dp_replicate": 1, "dp_shard": ranks, "stage": stage}
        layout = replace(s.layout, **shared, reshard_after_forward=True)
        if layout != s.layout and stage >= s.layout.stage:
            yield f"dp_shard {ranks} (ZeRO {stage})", replace(s, layout=layout)
