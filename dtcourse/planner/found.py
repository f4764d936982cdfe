"""What search() has found: the fastest layouts, those that are lean besides, and why another one is none of these."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from dtcourse.planner.bounds import Bounds
from dtcourse.planner.keepers import Candidate, Frontier, Undominated
from dtcourse.planner.layout import Batch, Layout
from dtcourse.planner.listing import Listing
from dtcourse.planner.prediction import Prediction
from dtcourse.planner.ranges import likely
from dtcourse.planner.setting import Setting
from dtcourse.planner.software import Software
from dtcourse.planner.space import CHUNKED, TRIED
from dtcourse.planner.step import predict, predict_likely
from dtcourse.planner.why_not import GIB, unsure, why_not, words


@dataclass(frozen=True)
class Choice:
    """A layout that was predicted, with the likely number in place of each range. bound: what closed forms said, if
    they were asked.
    """

    layout: Layout
    batch: Batch
    software: Software
    prediction: Prediction
    bound: float | None = None

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.prediction.seconds

    @property
    def nbytes(self) -> float:
        """Of the rank that needs most."""
        return self.prediction.peak_bytes

    @property
    def key(self) -> tuple[Layout, Batch, Software]:
        """What was predicted."""
        return self.layout, self.batch, self.software

    def __str__(self) -> str:
        return (
            f"{self.seconds:9.4g} s  MFU {self.prediction.mfu:6.1%}  {self.nbytes / GIB:6.1f} GiB  "
            f"{words(self.layout, self.batch, self.software)}"
        )


def choice(bounds: Bounds, one: Candidate) -> Choice:
    """Predicts it."""
    s = replace(bounds.base, layout=one.layout, batch=one.batch, software=one.software)
    return Choice(one.layout, one.batch, one.software, predict_likely(s), one.seconds)


@dataclass(frozen=True, repr=False)
class Found:
    """choices:  that were predicted, the fastest first
    listing:     the space, counted
    slow, large, alone: possible layouts that were left out by a floor which they share with others, by the first rank's
                 memory, and those that were looked at one by one
    proven:      no layout of the space that fits has a prediction of fewer seconds than the best; else, only those with
                 the lowest bounds were predicted, and one behind them might have
    sure:        only what fits over all that is known as a range was kept
    """

    choices: list[Choice]
    listing: Listing
    slow: int
    large: int
    alone: int
    proven: bool
    sure: bool
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

    def why_not(
        self, layout: Layout, micro_batch: int | None = None, recompute: str | None = None
    ) -> str:
        """What speaks against this layout: the equation that fails, the bytes that are too many, or how much slower it
        is and through what.

        layout: what the search has not tried and this has at its default (overlaps, buckets) is as in the search
        micro_batch, recompute: None: as the best has them
        """
        asked = self._asked(layout, micro_batch, recompute)
        best = words(*self.best.key)
        if self.sure and (said := unsure(self._bounds, asked)):
            return said
        in_space = self.listing.has(asked, self._bounds.base.layout)
        return why_not(asked, self._bounds.devices, self.best.prediction, best, in_space)

    def what_if(
        self, micro_batch: int | None = None, recompute: str | None = None, **changes: Any
    ) -> Choice:
        """The best with something else, on as many devices: predicted.

        changes: fields of Layout. What pp, cp and tp leave of the devices is dp_shard's, or without ZeRO's stages
                 dp_replicate's, unless one of these two is said: then it is the other's

        Raises ValueError for a layout that is not possible, with the equation that fails.
        """
        layout = changed(self.best.layout, self._bounds.devices, changes)
        s = self._asked(layout, micro_batch, recompute)
        found = predict_likely(s, self._bounds.devices)
        return Choice(s.layout, s.batch, s.software, found)

    def controls(self) -> tuple[dict[str, list[Any]], dict[str, Any]]:
        """What what_if() may be asked, of what was searched: by name the values, and what the best has.

        For plots.frontier_explorer(found.pareto(), found.what_if, *found.controls()).
        """
        families = list(self.listing.slices)
        names = ("tp", "sequence_parallel", "cp", "ep", "micro_batch", "recompute")
        values = {name: {getattr(one, name) for one in families} for name in names}
        slices = [each for some in self.listing.slices.values() for each in some]
        values["pp"] = {each.pp for each in slices}
        values["schedule"] = {name for each in slices for name, _ in each.schedules}
        values["stage"] = {cut.stage for each in slices for cut in each.cuts}
        best = {**vars(self.best.layout), **vars(self.best.batch), **vars(self.best.software)}
        found = {name: sorted(some) for name, some in values.items() if len(some) > 1}
        return found, {name: best[name] for name in found}

    def _asked(self, layout: Layout, micro_batch: int | None, recompute: str | None) -> Setting:
        base, plain = self._bounds.base, Layout()
        software, micro_batch = self.best.software, micro_batch or self.best.batch.micro_batch
        if recompute is not None:
            every = base.software.recompute_every if recompute == "full" else 1
            software = replace(software, recompute=recompute, recompute_every=every)
        (layout,) = likely((layout,))
        same = {
            each.name: getattr(base.layout, each.name)
            for each in fields(layout)
            if each.name not in TRIED and getattr(layout, each.name) == getattr(plain, each.name)
        }
        batch = Batch(base.batch.sequences, micro_batch)
        return replace(base, layout=replace(layout, **same), batch=batch, software=software)

    def pareto(self, tolerance: float = 0.01, prove: bool = False) -> list[Choice]:
        """Layouts to which none is better in both, seconds and bytes, the fastest first: of those that were predicted,
        and of those that are so by their bounds.

        tolerance: one that is better by less than this part is left out
        prove:     predict as many more as could still belong to them
        """
        if not tolerance >= 0:
            raise ValueError(f"tolerance is 0 or more; got {tolerance}")
        known = {each.key: each for each in self.choices}
        keeper = Frontier(tolerance)
        self._bounds.scan(self.listing, keeper)
        known |= {
            one.key: choice(self._bounds, one) for one in keeper.found if one.key not in known
        }
        if prove:
            every = Undominated(tolerance, known, lambda one: choice(self._bounds, one))
            self._bounds.scan(self.listing, every)
        return _front(known.values(), tolerance)

    def __str__(self) -> str:
        whole = self.predict(self.best)
        low, high = whole.interval
        least, most = (nbytes / GIB for nbytes in whole.bytes_interval)
        proof = (
            "None that fits is faster than the first."
            if self.proven
            else "Those that were not predicted might be faster than the first (prove=True tells)."
        )
        fits = "" if whole.surely_fits else ", and may not fit (sure=True keeps what surely does)"
        return "\n".join([
            str(self.listing),
            f"of the possible ones {self.slow:,} are slow by a bound of many at once, {self.large:,} have no room on "
            f"their first rank, {self.alone:,} were looked at one by one, {len(self.choices):,} predicted. {proof}",
            *map(str, self.choices[:10]),
            f"the first takes {low:.4g} to {high:.4g} s and {least:.1f} to {most:.1f} GiB, over what is only known as "
            f"a range{fits}",
        ])  # fmt: skip


def changed(layout: Layout, devices: int, changes: dict[str, Any]) -> Layout:
    """A layout with other fields, on as many devices. ValueError where they do not divide, and for no field."""
    if strangers := changes.keys() - {each.name for each in fields(layout)}:
        names = ", ".join(each.name for each in fields(layout))
        raise ValueError(f"a layout has no {min(strangers)}; it has {names}")
    wanted = {
        name: changes.get(name, getattr(layout, name)) for name in ("pp", "cp", "tp", "stage", "ep")
    }
    pp, cp, tp, stage, ep = wanted.values()
    data, left = divmod(devices, pp * cp * tp)
    if left or not data:
        raise ValueError(
            f"{devices} devices are no multiple of pp({pp}) x cp({cp}) x tp({tp}) = {pp * cp * tp}"
        )
    one, other = ("dp_shard", "dp_replicate") if stage or ep > 1 else ("dp_replicate", "dp_shard")
    if other in changes and one not in changes:
        one, other = other, one
    of_one = changes.get(one, data)
    if data % of_one:
        raise ValueError(f"pp, cp and tp leave {data} devices, no multiple of {one}({of_one})")
    given = {one: of_one, other: data // of_one, **changes}
    if tp == 1 and "sequence_parallel" not in changes:
        given["sequence_parallel"] = False
    if pp == 1:
        given |= {"schedule": "1f1b", "chunks": 1}
    elif "chunks" not in changes and "schedule" in given:
        given["chunks"] = max(2, layout.chunks) if given["schedule"] in CHUNKED else 1
    return replace(layout, **given)


def _front(choices: Iterable[Choice], tolerance: float) -> list[Choice]:
    """Of these the fastest, and each next one that is leaner by more than a part."""
    front: list[Choice] = []
    for one in sorted(choices, key=lambda each: (each.seconds, each.nbytes)):
        if not front or one.nbytes * (1 + tolerance) < front[-1].nbytes:
            front.append(one)
    return front
