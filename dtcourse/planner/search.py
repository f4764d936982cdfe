"""search(): which layout of so many devices is the fastest that fits.

    found = search(gpt3, "A100 SXM", devices=1024, batch=1536)
    print(found)                                       # the space, counted, and the ten fastest
    found.best.layout, found.why_not(Layout(dp_shard=128, tp=8, stage=3)), found.pareto()

All layouts are counted. Closed forms (bounds.py) say of each what its bytes are, and below how many seconds its
prediction cannot be; most are left out together with others. Those with the lowest bounds are predicted, with events.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dtcourse.planner.bounds import Bounds
from dtcourse.planner.hardware import Hardware
from dtcourse.planner.keepers import Below, Candidate, Fastest, Frontier
from dtcourse.planner.layout import AXES, Batch, Layout
from dtcourse.planner.listing import Asked, Listing
from dtcourse.planner.model import Model
from dtcourse.planner.prediction import Prediction
from dtcourse.planner.ranges import likely
from dtcourse.planner.setting import Setting
from dtcourse.planner.software import Precision, Software
from dtcourse.planner.space import Space
from dtcourse.planner.step import predict, predict_likely
from dtcourse.planner.why_not import GIB, SAME, nothing_fits, why_not, words


@dataclass(frozen=True)
class Choice:
    """A layout that was predicted, with the likely number in place of each range. bound: what closed forms said."""

    layout: Layout
    batch: Batch
    software: Software
    prediction: Prediction
    bound: float

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.prediction.seconds

    @property
    def nbytes(self) -> float:
        """Of the rank that needs most."""
        return self.prediction.peak_bytes

    def __str__(self) -> str:
        return (
            f"{self.seconds:9.4g} s  MFU {self.prediction.mfu:6.1%}  {self.nbytes / GIB:6.1f} GiB  "
            f"{words(self.layout, self.batch, self.software)}"
        )


@dataclass(frozen=True, repr=False)
class Found:
    """choices:  that were predicted, the fastest first
    listing:     the space, counted
    slow, large, alone: possible layouts that were left out by a floor which they share with others, by the first rank's
                 memory, and those that were looked at one by one
    proven:      no layout of the space has a prediction of fewer seconds; else, only those with the lowest bounds were
                 predicted, and one behind them might be faster
    """

    choices: list[Choice]
    listing: Listing
    slow: int
    large: int
    alone: int
    proven: bool
    _bounds: Bounds
    _given: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"<Found: {self.listing.possible:,} layouts, the best {self.best}>"

    @property
    def best(self) -> Choice:
        """The fastest."""
        return self.choices[0]

    def predict(self, choice: Choice) -> Prediction:
        """With its interval, over all that is only known as a range."""
        model, hardware, layout, _, precision, software = self._given
        layout = replace(choice.layout, overlap_tensor=layout.overlap_tensor)
        again = choice.software
        software = replace(
            software, recompute=again.recompute, recompute_every=again.recompute_every
        )
        return predict(model, hardware, layout, choice.batch, precision, software)

    def why_not(self, layout: Layout, micro_batch: int = 1, recompute: str | None = None) -> str:
        """What speaks against this layout: the equation that fails, the bytes that are too many, or how much slower it
        is and through what.

        recompute: None: as the best does
        """
        base = self._bounds.base
        software = self.best.software
        if recompute is not None:
            every = base.software.recompute_every if recompute == "full" else 1
            software = replace(software, recompute=recompute, recompute_every=every)
        batch = Batch(base.batch.sequences, micro_batch)
        (layout,) = likely((layout,))
        asked = replace(base, layout=layout, batch=batch, software=software)
        best = words(self.best.layout, self.best.batch, self.best.software)
        return why_not(asked, self._bounds.devices, self.best.prediction, best)

    def pareto(self, tolerance: float = 0.01) -> list[Choice]:
        """Layouts to which none is better in both, seconds and bytes; the fastest first.

        They are chosen by their bounds, then predicted, and those that predictions turn out worse are left out.
        tolerance: one that is better by less than this part is left out
        """
        if not tolerance >= 0:
            raise ValueError(f"tolerance is 0 or more; got {tolerance}")
        keeper = Frontier(tolerance)
        self._bounds.scan(self.listing, keeper)
        front: list[Choice] = []
        chosen = [_choice(self._bounds, one) for one in keeper.found]
        for one in sorted(chosen, key=lambda each: (each.seconds, each.nbytes)):
            if not front or one.nbytes < front[-1].nbytes:
                front.append(one)
        return front

    def __str__(self) -> str:
        low, high = self.predict(self.best).interval
        proof = (
            "None of the others can be faster."
            if self.proven
            else "Some of the others might be faster by less than their bounds tell (prove=True)."
        )
        return "\n".join([
            str(self.listing),
            f"of the possible ones {self.slow:,} are slower by a bound that they share, {self.large:,} have no room on "
            f"their first rank, {self.alone:,} were looked at one by one, {len(self.choices):,} predicted. {proof}",
            *map(str, self.choices[:10]),
            f"the first takes {low:.4g} to {high:.4g} s, over what is only known as a range",
        ])  # fmt: skip


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
) -> Found:
    """The fastest layouts of so many devices that fit their memory.

    batch:       sequences of a step, over all devices
    software:    its recomputation is not asked for: the space says which are tried
    space:       which degrees, schedules, micro-batches are tried
    layout:      all that the space does not try (context, overlaps, buckets); its degrees do not matter
    predictions: how many are predicted, those with the lowest bounds
    prove:       predict as many more as could still be faster than the best

    Raises ValueError where no layout is possible (which equations fail), and where none fits (which is the nearest, and
    what it needs).
    """
    for name, value in (("devices", devices), ("batch", batch), ("predictions", predictions)):
        if value < 1:
            raise ValueError(f"{name} is at least 1; got {value}")
    base = layout or Layout()
    if base.axes != AXES:
        raise ValueError(f"a search has the axes in the order {', '.join(AXES)}; got {base.axes}")
    card = Hardware.of(hardware) if isinstance(hardware, str) else hardware
    given = (model, card, base, Batch(batch), precision or Precision(), software or Software())
    known = Setting(*likely(given))
    known.check()
    known.hardware.check_nodes(devices)
    listing = Asked(space or Space(), known.model, devices, batch, known.layout).listing()
    if not listing.possible:
        refused = (
            f"none is possible. {listing}"
            if listing.layouts
            else "the space has none: no degree divides them"
        )
        raise ValueError(f"of {devices} devices and {batch} sequences a step, {refused}")
    bounds, fastest = Bounds(known, devices), Fastest(predictions)
    bounds.scan(listing, fastest)
    if not fastest.found:
        raise ValueError(nothing_fits(bounds, listing))
    counts = (bounds.slow, bounds.large, bounds.alone)
    choices = [_choice(bounds, one) for one in fastest.found]
    best = min(each.seconds for each in choices)
    proven = fastest.limit >= best * (1 - SAME)
    if prove and not proven:
        _prove(bounds, listing, choices, best)
        proven = True
    choices.sort(key=lambda each: each.seconds)
    return Found(choices, listing, *counts, proven, bounds, given)


def _choice(bounds: Bounds, one: Candidate) -> Choice:
    """Predicts it."""
    s = replace(bounds.base, layout=one.layout, batch=one.batch, software=one.software)
    return Choice(one.layout, one.batch, one.software, predict_likely(s), one.seconds)


def _prove(bounds: Bounds, listing: Listing, choices: list[Choice], best: float) -> None:
    """Predicts all that might still be faster than the best, from the lowest bound on."""
    done = {(each.layout, each.batch, each.software) for each in choices}
    below = Below(best)
    bounds.scan(listing, below)
    for one in below.found:
        if one.seconds >= best * (1 - SAME):
            break
        if (one.layout, one.batch, one.software) not in done:
            choices.append(_choice(bounds, one))
            best = min(best, choices[-1].seconds)
