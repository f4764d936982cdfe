"""Which layouts are tried: degrees, ZeRO's stages, schedules, micro-batches, recomputation.

    family     what a block of the model costs: tp, sequence_parallel, cp, ep, the micro-batch, recomputation
    slice      a family's pipelines of one length: their micro-batches, and their schedules
    cut        how the ranks that are left share states out: dp_replicate, dp_shard, ZeRO's stage

A layout is a family, one of its slices, and of this a cut and a schedule. What has two names is counted once: without
ZeRO, dp_shard and dp_replicate are the same (DDP); states on one rank are not shared; without a pipeline there is no
schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, NamedTuple

from dtcourse.planner.layout import V_SHAPED, Layout
from dtcourse.planner.model import Model
from dtcourse.planner.software import Software

DEGREES = ("tp", "cp", "pp", "ep", "dp_shard", "chunks", "micro_batches")
CHUNKED = ("interleaved", "breadth_first")
Schedules = list[tuple[str, int]]  # names, and stages of a rank where they are chunked


class Family(NamedTuple):
    """A block costs as much in all layouts of a family, but for adding and casting what micro-batches share."""

    tp: int
    sequence_parallel: bool
    cp: int
    ep: int
    micro_batch: int
    recompute: str

    def layout(self, base: Layout, **others: Any) -> Layout:
        """base: for what no search changes; others: what the family leaves open. ValueError where it is impossible."""
        own: dict[str, Any] = {
            "dp_replicate": 1, "dp_shard": 1, "pp": 1, "stage": 0, "schedule": "1f1b", "chunks": 1, "layers": None,
            "tp": self.tp, "sequence_parallel": self.sequence_parallel, "cp": self.cp, "ep": self.ep,
        }  # fmt: skip
        return replace(base, **(own | others))

    def software(self, base: Software) -> Software:
        """The same program, recomputing as this family does."""
        every = base.recompute_every if self.recompute == "full" else 1
        return replace(base, recompute=self.recompute, recompute_every=every)


# What a search changes of a layout; all else it leaves as it is.
TRIED = (
    "dp_replicate", "dp_shard", "pp", "stage", "reshard_after_forward", "schedule", "chunks", "layers", "tp",
    "sequence_parallel", "cp", "ep",
)  # fmt: skip


class Cut(NamedTuple):
    """How the ranks of data parallelism share states out."""

    dp_replicate: int
    dp_shard: int
    stage: int
    reshard_after_forward: bool


class Slice(NamedTuple):
    """A family's pipelines of one length."""

    pp: int
    micro_batches: int
    cuts: list[Cut]
    schedules: Schedules

    @property
    def size(self) -> int:
        """How many layouts."""
        return len(self.cuts) * len(self.schedules)

    def alike(self) -> list[Schedules]:
        """Together those that cut the model into the same stages, on the same ranks."""
        found: dict[Any, Schedules] = {}
        for name, chunks in self.schedules:
            found.setdefault((name in V_SHAPED, chunks), []).append((name, chunks))
        return list(found.values())


@dataclass(frozen=True)
class Space:
    """What is tried of each choice; None: every degree that divides the devices (ep: the experts).

    chunks: of the schedules that have them; reshard_after_forward: of ZeRO's stage 3

    Raises ValueError for what is no value of a layout, and for nothing to try. A degree that does not divide is passed
    over: the search says so.
    """

    tp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    dp_shard: tuple[int, ...] | None = None
    stages: tuple[int, ...] = (0, 1, 2, 3)
    reshard_after_forward: tuple[bool, ...] = (True, False)
    sequence_parallel: tuple[bool, ...] = (False, True)
    schedules: tuple[str, ...] = (
        "1f1b", "interleaved", "gpipe", "breadth_first", "zb_h1", "zb_v", "dualpipe_v",
    )  # fmt: skip
    chunks: tuple[int, ...] = (2, 4)
    micro_batches: tuple[int, ...] = (1, 2, 4, 8)
    recompute: tuple[str, ...] = ("none", "selective", "ops", "full")

    def __post_init__(self) -> None:
        for each in fields(self):
            name, given = each.name, getattr(self, each.name)
            if given is None and each.default is None:
                continue
            if isinstance(given, str) or not isinstance(given, Iterable):
                raise ValueError(f"{name} is all values to try, as ({given!r},); got {given!r}")
            object.__setattr__(self, name, tuple(dict.fromkeys(given)))
            if not getattr(self, name):
                raise ValueError(f"{name} has at least one value to try; got none")
        for name in DEGREES:
            given = getattr(self, name)
            if given and not all(isinstance(one, int) and one >= 1 for one in given):
                raise ValueError(f"{name} is one number or more, each at least 1; got {given}")
        # Each is refused by name where there is no such thing.
        for stage in self.stages:
            Layout(dp_shard=2, stage=stage)
        for schedule in self.schedules:
            Layout(schedule=schedule)
        for recompute in self.recompute:
            Software(recompute=recompute)

    def families(self, model: Model, devices: int) -> Iterator[Family]:
        """All of them, the impossible ones too."""
        given = chosen(self.ep, model.experts) if model.experts else (1,)
        for tp in chosen(self.tp, devices):
            for cp in chosen(self.cp, devices // tp):
                for cut in self.sequence_parallel if tp > 1 else (False,):
                    for ep in given:
                        for micro_batch in self.micro_batches:
                            for recompute in self.recompute:
                                yield Family(tp, cut, cp, ep, micro_batch, recompute)

    def passed_over(self, model: Model, devices: int) -> list[str]:
        """In words, degrees that were asked for and divide nothing."""
        found = []
        for name in ("tp", "cp", "pp", "dp_shard", "ep"):
            number = model.experts if name == "ep" else devices
            lost = [
                one for one in getattr(self, name) or () if number % one or (one > 1 and not number)
            ]
            of = (
                f"{devices} devices"
                if name != "ep"
                else f"{number} experts"
                if number
                else "a model without experts"
            )
            found += [f"{name} {', '.join(map(str, lost))} of {of}"] if lost else []
        return found

    def pipelines(self, family: Family, devices: int) -> tuple[int, ...]:
        """Lengths of a family's pipelines."""
        return chosen(self.pp, devices // (family.tp * family.cp))


def chosen(tried: tuple[int, ...] | None, number: int) -> tuple[int, ...]:
    """Of the divisors of a number those that are tried; None: all."""
    found = _divisors(number)
    return found if tried is None else tuple(each for each in found if each in tried)


@lru_cache(maxsize=10_000)
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(each for each in range(1, number + 1) if number % each == 0)


@lru_cache(maxsize=10_000)
def cuts_of(space: Space, data: int, cp: int, ep: int) -> list[Cut]:
    """All ways in which so many ranks with samples share states. Without ZeRO, experts are among dp_shard's ranks."""
    found = []
    if 0 in space.stages or data * cp == 1:
        found.append(Cut(1, data, 0, True) if ep > 1 else Cut(data, 1, 0, True))
    for shard in chosen(space.dp_shard, data):
        for stage in space.stages if shard * cp > 1 else ():
            for again in space.reshard_after_forward if stage == 3 else (True,):
                if stage:
                    found.append(Cut(data // shard, shard, stage, again))
    return found


@lru_cache(maxsize=1_000)
def schedules_of(space: Space, pp: int) -> Schedules:
    """Those of a pipeline of this length."""
    if pp == 1:
        return [("1f1b", 1)]
    return [
        (name, chunks)
        for name in space.schedules
        for chunks in (space.chunks if name in CHUNKED else (1,))
    ]
