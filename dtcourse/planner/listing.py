"""The layouts of a space for so many devices, counted: what is possible, and which equation refuses the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from dtcourse.planner import impossible
from dtcourse.planner.layout import V_SHAPED, Batch, Layout
from dtcourse.planner.model import Model
from dtcourse.planner.pipelines import possible
from dtcourse.planner.setting import Setting
from dtcourse.planner.space import Cut, Family, Slice, Space, cuts_of, schedules_of


@dataclass
class Listing:
    """slices: by family, what is possible; layouts: how many there are in all; refused, examples: by what an equation
    is about, how many layouts it refuses, and its sentence for one of them; passed_over: degrees that divide nothing.
    """

    slices: dict[Family, list[Slice]] = field(default_factory=dict)
    layouts: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)

    @property
    def possible(self) -> int:
        """How many no equation refuses."""
        return self.layouts - sum(self.refused.values())

    def has(self, s: Setting, base: Layout) -> bool:
        """Whether this is one of the possible ones. base: what the search has not changed."""
        layout = s.layout
        family = Family(
            layout.tp, layout.sequence_parallel, layout.cp, layout.ep, s.batch.micro_batch, s.software.recompute
        )  # fmt: skip
        for each in self.slices.get(family, ()):
            for cut in each.cuts if each.pp == layout.pp else ():
                for name, chunks in each.schedules:
                    others = {"pp": each.pp, "schedule": name, "chunks": chunks, **cut._asdict()}
                    if layout == family.layout(base, **others):
                        return True
        return False

    def refuse(self, about: str, layouts: int, example: Callable[[], str]) -> None:
        """Counts them."""
        if not layouts:
            return
        self.refused[about] = self.refused.get(about, 0) + layouts
        if about not in self.examples:
            self.examples[about] = example()

    def __str__(self) -> str:
        lines = [f"{self.layouts:,} layouts, of which {self.possible:,} are possible"]
        for about, count in sorted(self.refused.items(), key=lambda each: -each[1]):
            lines.append(f"  {count:,} are refused by their {about}: {self.examples[about]}")
        lines += [f"  not tried, since they do not divide: {each}" for each in self.passed_over]
        return "\n".join(lines)


@dataclass(frozen=True)
class Asked:
    """sequences: of a step; base: a layout that says what is the same in all."""

    space: Space
    model: Model
    devices: int
    sequences: int
    base: Layout

    def listing(self) -> Listing:
        """All layouts of the space."""
        found = Listing(passed_over=self.space.passed_over(self.model, self.devices))
        for family in self.space.families(self.model, self.devices):
            pipelines = self.space.pipelines(family, self.devices)
            try:
                layout = family.layout(self.base, dp_shard=family.ep)
                impossible.widths(self.model, layout)
                impossible.experts(self.model, layout)
            except ValueError as error:
                size = sum(self._size(family, pp) for pp in pipelines)
                found.layouts += size
                found.refuse("widths", size, partial(str, error))
                continue
            slices = [self._slice(found, family, pp) for pp in pipelines]
            if some := [each for each in slices if each.size]:
                found.slices[family] = some
        return found

    def _data(self, family: Family, pp: int) -> int:
        return self.devices // (family.tp * family.cp * pp)

    def _size(self, family: Family, pp: int) -> int:
        cuts = cuts_of(self.space, self._data(family, pp), family.cp, family.ep)
        return len(cuts) * len(schedules_of(self.space, pp))

    def _slice(self, found: Listing, family: Family, pp: int) -> Slice:
        """What is possible of a family's pipelines of this length; the rest is refused."""
        data = self._data(family, pp)
        cuts = cuts_of(self.space, data, family.cp, family.ep)
        schedules = schedules_of(self.space, pp)
        found.layouts += len(cuts) * len(schedules)
        fitting = [cut for cut in cuts if self._holds(family, cut)]
        if not fitting:
            if cuts:
                said = partial(self._said, family, pp, cuts[0], *schedules[0])
                found.refuse("experts", len(cuts) * len(schedules), said)
            return Slice(pp, 0, [], [])
        if len(fitting) < len(cuts):
            other = next(cut for cut in cuts if cut not in fitting)
            said = partial(self._said, family, pp, other, *schedules[0])
            found.refuse("experts", (len(cuts) - len(fitting)) * len(schedules), said)
        micro_batches, left = divmod(self.sequences, data * family.micro_batch)
        if left:
            said = partial(self._said, family, pp, fitting[0], *schedules[0])
            found.refuse("sequences", len(fitting) * len(schedules), said)
            return Slice(pp, 0, [], [])
        fine = []
        for name, chunks in schedules:
            stages = pp * (2 if name in V_SHAPED else chunks)
            few = pp > 1 and self.model.layers < stages
            if not few and possible(name, pp, micro_batches):
                fine.append((name, chunks))
                continue
            said = partial(self._said, family, pp, fitting[0], name, chunks)
            found.refuse("layers" if few else "schedules", len(fitting), said)
        return Slice(pp, micro_batches, fitting, fine)

    def _holds(self, family: Family, cut: Cut) -> bool:
        """Whether experts can be given out over the ranks that share states (Layout's own equations)."""
        if family.ep == 1:
            return True
        tp, shared = family.tp, cut.dp_shard * family.cp
        etp = tp if self.base.expert_tp is None else self.base.expert_tp
        whole = etp < tp or shared % family.ep == 0
        return whole and shared * tp % (family.ep * etp) == 0

    def _said(self, family: Family, pp: int, cut: Cut, name: str, chunks: int) -> str:
        """What is said of a layout that is refused."""
        try:
            layout = family.layout(self.base, pp=pp, schedule=name, chunks=chunks, **cut._asdict())
            impossible.check(self.model, layout, Batch(self.sequences, family.micro_batch))
        except ValueError as error:
            return str(error)
        return ""
