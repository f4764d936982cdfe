"""A pipeline's stage: its blocks, perhaps the embedding or the head, and what a micro-batch takes in it.

Also what belongs to a stage once a step: gradients averaged, the optimizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from dtcourse.planner import block, ends, gathers, memory, messages, sharding
from dtcourse.planner.alike import alike
from dtcourse.planner.gathers import Unit
from dtcourse.planner.kernels import moving
from dtcourse.planner.network import ends_group
from dtcourse.planner.segments import (
    FORWARD,
    INPUT,
    PHASES,
    WEIGHT,
    Parts,
    Segment,
    add,
    segment,
    wait_for_host,
)
from dtcourse.planner.setting import Setting
from dtcourse.planner.sharding import Weights
from dtcourse.planner.software import UNFUSED_OPTIMIZER
from dtcourse.simulator.states import optimizer_bytes, precision_named


@dataclass(frozen=True)
class Stage:
    """parts: by phase, of one micro-batch; once: what comes once a step, after the last backward

    weights: numbers that a rank computes with, and by unit, in order (the
             embedding's, blocks', the head's), with how many in a row are alike
    flops:   by phase, of one micro-batch, on one rank
    """

    parts: dict[str, Parts]
    once: Parts
    units: tuple[tuple[Weights, int], ...]
    flops: dict[str, float]

    @property
    def weights(self) -> Weights:
        """Of all units."""
        return sum((each * count for each, count in self.units), Weights(0.0))

    def seconds(self, *phases: str) -> float:
        """Of one micro-batch."""
        return sum(sum(self.parts[phase].values()) for phase in phases)


def runs(units: Sequence[Unit]) -> list[tuple[Unit, int]]:
    """Each, with how many in a row are the same."""
    groups = (list(group) for _, group in groupby(units, key=id))
    return [(group[0], len(group)) for group in groups]


class Stages:
    """Makes stages; blocks that are alike are costed once.

    known: what was costed for other layouts of the same model, hardware, precision and software (but for recompute);
           what is new is added
    """

    def __init__(self, setting: Setting, known: dict[Any, Any] | None = None) -> None:
        self.setting = setting
        known = {} if known is None else known
        self.key = key = alike(setting)
        if key not in known:
            known[key] = self._costed()
        self.blocks, self.embedding, head = known[key]
        self.head = (head, Weights(self._table() / setting.layout.tp))

    def _costed(self) -> tuple[dict[bool, Unit], Unit, Segment]:
        """(blocks without and with experts, the embedding, the head)."""
        s = self.setting
        blocks = {experts: self._block(experts) for experts in {False, bool(s.model.experts)}}
        first, last = messages.of_ends(s)
        embedding = (
            segment("embedding", ends.embedding(s), first, s, False),
            Weights(s.model.embedding_parameters / s.layout.tp),
        )
        return blocks, embedding, segment("head", ends.head(s), last, s, False)

    def _table(self) -> float:
        """The head's numbers: with a copy of a tied table, where the head is another rank's."""
        s = self.setting
        apart = s.model.tied and s.layout.ends_apart
        return s.model.head_parameters + s.model.vocabulary * s.model.hidden * apart

    def _block(self, experts: bool) -> tuple[Segment, Weights]:
        s = self.setting
        name = "experts" if experts else "block"
        made = block.Block(s, experts)
        kernels = made.kernels()
        core = sum(each.seconds for each in kernels if each.core and each.part == FORWARD)
        if s.hardware.measured and s.hardware.measured.core is not None:
            core = s.hardware.measured.core
        rest = sum(each.seconds for each in kernels if each.part == WEIGHT)
        if s.hardware.measured and name in s.hardware.measured.stretches:
            rest = s.hardware.measured.stretches[name][2]
        sent = messages.of_block(s, experts, core, rest)
        local = made.expert_parameters() if experts else 0.0
        weights = Weights(made.parameters() - local, local, made.linear_parameters())
        return segment(name, kernels, sent, s, True), weights

    def kinds(self, first_block: int, blocks: int) -> list[bool]:
        """Of each of these blocks, whether it has experts."""
        model = self.setting.model
        if not model.experts:
            return [False] * blocks
        return [(i + 1) % model.moe_every == 0 for i in range(first_block, first_block + blocks)]

    def units(self, first_block: int, blocks: int, first: bool, last: bool) -> list[Unit]:
        """Of a stage, in order: the embedding, blocks, the head."""
        found = [self.blocks[kind] for kind in self.kinds(first_block, blocks)]
        return [*[self.embedding] * first, *found, *[self.head] * last]

    def make(self, first_block: int, blocks: int, first: bool, last: bool) -> Stage:
        """The stage of these blocks; `first` has the embedding, `last` the head."""
        s = self.setting
        units = self.units(first_block, blocks, first, last)
        kinds = self.kinds(first_block, blocks)
        found = [self.blocks[kind] for kind in kinds]
        parts: dict[str, Parts] = {phase: {} for phase in PHASES}
        flops: Parts = {}
        host: Parts = {}
        for (each, _), count in runs(units):
            for phase in PHASES:
                add(parts[phase], each.parts[phase], count)
            add(flops, each.flops, count)
            add(host, each.host, count)
        if s.software.offload:
            self._offloaded(parts, kinds)
        weights = sum((each * n for (_, each), n in runs(units)), Weights(0.0))
        if s.layout.stage == 3:
            ends_ = (self.embedding if first else None, self.head if last else None)
            gathers.gathered(s, parts, found, *ends_)
            gathers.copied(s, parts, weights, found)
        wait_for_host(parts, host)  # which runs on while messages are waited for
        once = self._once(weights, found, sum(parts[INPUT].values()) + sum(parts[WEIGHT].values()))
        if s.model.tied and first != last:  # both ends have the table: its gradients are added up
            table = s.reduce * s.model.vocabulary * s.model.hidden / s.layout.tp
            once["averaging"] += ends_group(s.layout).seconds(s.hardware, "all_reduce", table)
        return Stage(parts, once, tuple((each, n) for (_, each), n in runs(units)), flops)

    def _offloaded(self, parts: dict[str, Parts], kinds: list[bool]) -> None:
        """What a block has kept goes to the host while the next one is computed, and comes back before its backward."""
        s = self.setting
        for experts in kinds:
            moved = memory.block_bytes(s, experts) / s.software.offload
            made, _ = self.blocks[experts]
            for phase, work in (
                (FORWARD, made.seconds(FORWARD)),
                (INPUT, made.seconds(INPUT, WEIGHT)),
            ):
                add(parts[phase], {"offload": max(0.0, moved - work)})

    def _exchange(self, weights: Weights) -> sharding.Exchange:
        s = self.setting
        return sharding.exchange(weights, s)

    def _once(
        self, weights: Weights, found: list[tuple[Segment, Weights]], backward: float
    ) -> Parts:
        """Seconds of a step's end: averaging where it is once, updated parameters gathered, the optimizer."""
        s, layout = self.setting, self.setting.layout
        cost = self._exchange(weights)
        once: Parts = {"averaging": 0.0, "contention": 0.0, "optimizer": self._optimizer(weights)}
        if layout.once or layout.stage < 3:
            times = 1 if layout.once else s.micro_batches
            pieces = max(1, len(found))
            seen, slower = sharding.hidden(
                cost.reduce, backward * (1 - 1 / pieces), s.hardware, layout.overlap_data
            )
            edge = cost.reduce / pieces if layout.overlap_data else 0.0
            once["averaging"] += times * (max(seen, edge) + sharding.copies(weights, s).reduce)
            once["contention"] += times * slower
        if layout.stage in (1, 2):
            once["averaging"] += cost.gather
        return once

    def _optimizer(self, weights: Weights) -> float:
        """States read and written, parameters written, gradients read for their norm and again."""
        s = self.setting
        if s.hardware.measured and s.hardware.measured.optimizer is not None:
            return s.hardware.measured.optimizer * s.layout.pp / s.layout.stages  # a rank's
        states = precision_named(s.precision.states)
        shared, few = (s.layout.shared, s.layout.expert_copies) if s.layout.stage else (1, 1)
        mine = weights.dense / shared + weights.experts / few
        kept = optimizer_bytes(s.precision.states, s.precision.optimizer)
        updated = 2 * kept if states.master else 2 * kept + 2 * states.parameters
        gradients = max(states.gradients, s.accumulate)
        each = updated + states.parameters * bool(states.master) + 2 * gradients
        passes = 1.0 if s.software.optimizer_fused else UNFUSED_OPTIMIZER
        return moving(mine * each * passes, s.hardware).seconds
