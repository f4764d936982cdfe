"""Bytes of a layout as predict() has them, and seconds that its prediction cannot be below: closed forms, for many.

Each stage costs what predict() says, with all its messages and its optimizer. What is left out is what only a
pipeline's events tell: waits in the middle of a step. Without a pipeline nothing is left out.

Most layouts are left out before, many at once, by a floor: seconds that none of them can be below. A family's floor
shares its blocks' work out over all devices. A slice's adds the way of the first micro-batch to the last stage, and of
the last one back. And the first rank alone may have no room. So nothing is left out that would have been kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dtcourse.planner import memory
from dtcourse.planner.keepers import Candidate, Keeper
from dtcourse.planner.layout import Batch
from dtcourse.planner.listing import Listing
from dtcourse.planner.memory import Held
from dtcourse.planner.pieces import Piece, Pieces, segments_of
from dtcourse.planner.pipelines import WHOLE, in_flight, least_makespan
from dtcourse.planner.segments import FORWARD, INPUT, PHASES, WEIGHT
from dtcourse.planner.setting import Setting
from dtcourse.planner.sharding import Weights
from dtcourse.planner.space import Cut, Family, Schedules, Slice
from dtcourse.planner.stage import Stages
from dtcourse.planner.step import transfer


class Bounds:
    """Closed forms for all layouts of one model on one cluster.

    base: known numbers, with a layout that says what is the same in all
    ends: the same with each range at one of its ends; sure: what does not fit at each of these is not kept
    slow, large, alone: layouts that the last scan left out by a floor, by memory, and looked at one by one
    """

    def __init__(
        self, base: Setting, devices: int, ends: Sequence[Setting] = (), sure: bool = False
    ) -> None:
        self.base, self.devices, self.sure = base, devices, sure
        self.ends = [Bounds(each, devices) for each in ends]
        self.slow = self.large = self.alone = 0
        self._blocks: dict[Any, Any] = {}
        self._held: dict[Any, Held] = {}
        self._pieces: dict[Any, Pieces] = {}
        self._settings: dict[Family, Setting] = {}
        self._cheapest: dict[Family, Stages] = {}

    def setting(self, family: Family, **others: Any) -> Setting:
        """Of a family's layout."""
        base = self.base
        if family not in self._settings:
            batch = Batch(base.batch.sequences, family.micro_batch)
            software = family.software(base.software)
            self._settings[family] = replace(base, batch=batch, software=software)
        return replace(self._settings[family], layout=family.layout(base.layout, **others))

    def pieces(self, pp: int, schedule: str, chunks: int) -> Pieces:
        """The model's stages."""
        key = (pp, schedule, chunks)
        if key not in self._pieces:
            self._pieces[key] = Pieces.cut(self.base.model, *key)
        return self._pieces[key]

    def cheapest(self, family: Family) -> Stages:
        """Blocks that add no gradients up, cast no weights, and share what is cast to 8 bits with all other ranks: no
        layout of the family has cheaper ones.
        """
        if family not in self._cheapest:
            copies = max(2, -(-self.devices // (family.tp * family.cp * family.ep)))
            others = {"dp_shard": copies * family.ep, "stage": 3, "reduce_once": None}
            self._cheapest[family] = Stages(self.setting(family, **others), self._blocks)
        return self._cheapest[family]

    def of_family(self, family: Family) -> float:
        """Seconds, if all work were shared out evenly and nobody ever waited."""
        made, b = self.cheapest(family), self.base
        all_of_it = segments_of(made, Piece(0, b.model.layers, True, True))
        device = sum(count * each.seconds(*PHASES) for each, count in all_of_it)
        host = sum(count * sum(each.host.values()) for each, count in all_of_it)
        of_a_rank = b.batch.sequences * family.tp * family.cp / (self.devices * family.micro_batch)
        return of_a_rank * max(device, host)

    def of_slice(self, family: Family, each: Slice, schedules: Schedules) -> float:
        """The least of these schedules, which have the same stages, if only blocks and ends took time."""
        made, pieces = self.cheapest(family), self.pieces(each.pp, *schedules[0])
        forward, backward = {}, {}
        for piece in set(pieces.of):
            found = segments_of(made, piece)
            forward[piece] = sum(n * one.seconds(FORWARD) for one, n in found)
            backward[piece] = sum(n * one.seconds(INPUT, WEIGHT) for one, n in found)
        there, back = ([one[piece] for piece in pieces.of] for one in (forward, backward))
        nothing, m = [0.0] * len(there), each.micro_batches
        kinds = {name in WHOLE: name for name, _ in schedules}.values()
        # All of a backward may wait, as far as this floor knows.
        return min(
            least_makespan(name, pieces.owner, there, nothing, back, m, 0.0) for name in kinds
        )

    def bytes_of_slice(self, family: Family, each: Slice, schedules: Schedules) -> float:
        """What the first rank keeps at least: activations alone, by the leanest of these schedules."""
        made, pieces = self.cheapest(family), self.pieces(each.pp, *schedules[0])
        m, first = each.micro_batches, next(iter(pieces.alike))
        fewest = min(in_flight(name, each.pp, chunks, m)[0] for name, chunks in schedules)
        blocks = sum(piece.blocks for piece in first) * fewest
        if self.base.software.offload:
            blocks = min(blocks, 2)
        return self._kept(made).block * blocks + float(self.base.hardware.context)

    def scan(self, listing: Listing, keeper: Keeper) -> None:
        """Offers the keeper all layouts that fit and that it does not call hopeless before, the most promising family
        first.
        """
        self.slow = self.large = self.alone = 0
        floors = sorted((self.of_family(family), family) for family in listing.slices)
        for floor, family in floors:
            for each in listing.slices[family]:
                if keeper.hopeless(floor, 0.0):
                    self.slow += each.size
                    continue
                for schedules in each.alike():
                    layouts = len(each.cuts) * len(schedules)
                    nbytes = self.bytes_of_slice(family, each, schedules)
                    if nbytes > self.base.hardware.memory:
                        self.large += layouts
                        continue
                    least = max(floor, self.of_slice(family, each, schedules))
                    if keeper.hopeless(least, nbytes):
                        self.slow += layouts
                        continue
                    self._cuts(family, each, schedules, least, nbytes, keeper)

    def nbytes(self, s: Setting) -> float:
        """Of the rank that needs most, as predict() has them."""
        shape = (s.layout.pp, str(s.layout.schedule), s.layout.chunks)
        made, pieces = Stages(s, self._blocks), self.pieces(*shape)
        kept = in_flight(shape[1], shape[0], shape[2], s.micro_batches)
        return self._most(made, pieces, pieces.units(made), kept)

    def at_ends(self, s: Setting) -> list[tuple[float, float]]:
        """(bytes that it needs, bytes that there are) with each range at one of its ends."""
        found = []
        for end in self.ends:
            software = replace(
                end.base.software,
                recompute=s.software.recompute,
                recompute_every=s.software.recompute_every,
            )
            there = replace(end.base, layout=s.layout, batch=s.batch, software=software)
            found.append((end.nbytes(there), end.base.hardware.memory))
        return found

    def surely(self, s: Setting) -> bool:
        """Whether it fits at all of them."""
        return all(needed <= there for needed, there in self.at_ends(s))

    def _cuts(
        self, family: Family, each: Slice, schedules: Schedules, least: float, nbytes: float, keeper: Keeper
    ) -> None:  # fmt: skip
        """All of a slice's. nbytes: what the first rank keeps beside its states, at least."""
        base, pieces = self.base, self.pieces(each.pp, *schedules[0])
        units = pieces.units(self.cheapest(family))
        first = next(iter(pieces.alike))
        weights = sum((one * n for piece in first for one, n in units[piece]), Weights(0.0))
        etp = family.tp if base.layout.expert_tp is None else base.layout.expert_tp
        for cut in each.cuts:
            shared = cut.dp_shard * family.cp
            copies = max(1, shared * family.tp // (family.ep * etp))
            states = memory.states_bytes(base, weights, cut.stage, shared, copies)
            needed = nbytes + sum(states.values())
            if needed > base.hardware.memory:
                self.large += len(schedules)
            elif keeper.hopeless(least, needed):
                self.slow += len(schedules)
            else:
                self._cut(family, each, schedules, cut, least, keeper)

    def _cut(
        self, family: Family, each: Slice, schedules: Schedules, cut: Cut, least: float, keeper: Keeper
    ) -> None:  # fmt: skip
        """Of layouts that differ in their schedule alone. least: seconds that none of them can be below."""
        (name, chunks), m = schedules[0], each.micro_batches
        s = self.setting(family, pp=each.pp, schedule=name, chunks=chunks, **cut._asdict())
        made, pieces = Stages(s, self._blocks), self.pieces(each.pp, name, chunks)
        units = pieces.units(made)
        kept = {one: in_flight(one, each.pp, chunks, m) for one, _ in schedules}
        first = next(iter(pieces.alike))  # the first rank's
        nbytes = self._bytes(made, units, first, min(levels[0] for levels in kept.values()))
        if nbytes > s.hardware.memory:
            self.large += len(schedules)
            return
        if keeper.hopeless(least, nbytes):
            self.slow += len(schedules)
            return
        stages = {piece: made.make(*piece) for piece in set(pieces.of)}
        once = {piece: sum(stage.once.values()) for piece, stage in stages.items()}
        after = max(sum(once[piece] for piece in held) for held in pieces.alike)
        costs = {
            piece: [stage.seconds(phase) for phase in PHASES] for piece, stage in stages.items()
        }
        forward, inputs, last = ([costs[piece][n] for piece in pieces.of] for n in range(3))
        seconds: dict[bool, float] = {}
        for one, _ in schedules:
            whole = one in WHOLE
            if whole not in seconds:
                makespan = least_makespan(one, pieces.owner, forward, inputs, last, m, transfer(s))
                seconds[whole] = max(least, makespan + after)
            self.alone += 1
            if keeper.hopeless(seconds[whole], nbytes):
                continue
            most = self._most(made, pieces, units, kept[one])
            layout = replace(s.layout, schedule=one)
            if most <= s.hardware.memory and (
                not self.sure or self.surely(replace(s, layout=layout))
            ):
                keeper.offer(Candidate(seconds[whole], most, layout, s.batch, s.software))

    def _most(
        self,
        made: Stages,
        pieces: Pieces,
        units: dict[Piece, list[tuple[Weights, int]]],
        kept: Sequence[float],
    ) -> float:
        return max(
            self._bytes(made, units, held, max(kept[rank] for rank in ranks))
            for held, ranks in pieces.alike.items()
        )

    def _bytes(
        self,
        made: Stages,
        units: dict[Piece, list[tuple[Weights, int]]],
        held: Sequence[Piece],
        kept: float,
    ) -> float:
        """Of a rank that holds these stages. kept: micro-batches whose activations it keeps at once."""
        last = any(piece.last for piece in held)
        found = [each for piece in held for each in units[piece]]
        blocks = sum(piece.blocks for piece in held)
        known = self._kept(made)
        return sum(memory.stage_bytes(made.setting, found, blocks, last, kept, known).values())

    def _kept(self, made: Stages) -> Held:
        if made.key not in self._held:
            self._held[made.key] = Held.of(made.setting)
        return self._held[made.key]
