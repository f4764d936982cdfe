"""search(): which layout of so many devices is the fastest that fits.

    found = search(gpt3, "A100 SXM", devices=1024, batch=1536)
    print(found)                                       # the space, counted, and the ten fastest
    found.best.layout, found.why_not(Layout(dp_shard=128, tp=8, stage=3)), found.what_if(tp=8, recompute="full")
    plots.frontier(found.pareto(), limit=80e9)         # of seconds and bytes; with controls: plots.frontier_explorer

All layouts are counted. Closed forms (bounds.py) say of each how many bytes it needs, and how many seconds it takes at
least; most are left out together with others. Those with the lowest bounds are predicted, with events.
"""

from __future__ import annotations

from dataclasses import replace

from dtcourse.planner.bounds import Bounds
from dtcourse.planner.found import Found, choice
from dtcourse.planner.hardware import Hardware
from dtcourse.planner.keepers import Fastest
from dtcourse.planner.layout import AXES, Batch, Layout
from dtcourse.planner.listing import Asked
from dtcourse.planner.model import Model
from dtcourse.planner.ranges import corners, likely
from dtcourse.planner.setting import Setting
from dtcourse.planner.software import Precision, Software
from dtcourse.planner.space import Space
from dtcourse.planner.why_not import SAME, nothing_fits


def search(
    model: Model,
    hardware: Hardware | str,
    devices: int,
    batch: int,
    precision: Precision | None = None,
    software: Software | None = None,
    *,
    space: Space | None = None,
    layout: Layout | None = None,
    predictions: int = 50,
    prove: bool = False,
    sure: bool = False,
) -> Found:
    """The fastest layouts of so many devices that fit their memory.

    batch:       sequences of a step, over all devices
    software:    which recomputation is the space's to say; with "full", every recompute_every layers
    space:       which degrees, schedules, micro-batches and recomputations are tried
    layout:      what the space does not try: context, expert_tp, reduce_once, overlaps, copies, buckets. What the space
                 tries is not read
    predictions: how many are predicted, those with the lowest bounds
    prove:       predict as many more as could still be faster than the best
    sure:        keep only what fits over all that is known as a range; else, what fits at the likely bytes

    Raises ValueError where no layout is possible (which equations fail), and where none fits (which is the nearest, and
    what it needs).
    """
    for name, value in (("devices", devices), ("batch", batch), ("predictions", predictions)):
        if not isinstance(value, int) or value < 1:
            raise ValueError(f"{name} is a whole number, at least 1; got {value!r}")
    base = layout or Layout()
    if base.axes != AXES:
        raise ValueError(f"a search has the axes in the order {', '.join(AXES)}; got {base.axes}")
    if base.layers is not None or callable(base.schedule):
        raise ValueError(
            "a search divides the layers evenly and tries schedules by name: predict() takes a layout with layers, or "
            "with a function as its schedule"
        )
    card = Hardware.of(hardware) if isinstance(hardware, str) else hardware
    given = (model, card, base, Batch(batch), precision or Precision(), software or Software())
    known = Setting(*likely(given))
    replace(known, layout=Layout()).check()
    known.hardware.check_nodes(devices)
    listing = Asked(space or Space(), known.model, devices, batch, known.layout).listing()
    if not listing.possible:
        refused = (
            f"none is possible. {listing}"
            if listing.layouts
            else "the space has none: no degree divides them"
        )
        raise ValueError(f"of {devices} devices and {batch} sequences a step, {refused}")
    bounds = Bounds(known, devices, [Setting(*each) for each in corners(given)], sure)
    fastest = Fastest(predictions)
    bounds.scan(listing, fastest)
    if not fastest.found:
        raise ValueError(nothing_fits(bounds, listing))
    counts = (bounds.slow, bounds.large, bounds.alone)
    choices = {one.key: choice(bounds, one) for one in fastest.found}
    best = min(each.seconds for each in choices.values())
    while prove and fastest.limit < best * (1 - SAME):
        # The layouts with the lowest bounds again, twice as many: all of a space at once may be too many to keep.
        fastest = Fastest(2 * fastest.number, below=best)
        bounds.scan(listing, fastest)
        for one in fastest.found:
            if one.key not in choices and one.seconds < best * (1 - SAME):
                choices[one.key] = choice(bounds, one)
                best = min(best, choices[one.key].seconds)
    proven = fastest.limit >= best * (1 - SAME)
    order = sorted(choices.values(), key=lambda each: each.seconds)
    return Found(order, listing, *counts, proven, sure, bounds, given)
