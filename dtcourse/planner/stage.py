"""A pipeline's stage: its blocks, perhaps the embedding or the head, and what a micro-batch takes in it.

Also what belongs to a stage once a step: gradients averaged, the optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtcourse.planner import block, memory, messages, sharding
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

    weights: numbers that a rank computes with; flops: by phase, of one micro-batch, on one rank
    """

    parts: dict[str, Parts]
    once: Parts
    weights: Weights
    flops: dict[str, float]

    def seconds(self, *phases: str) -> float:
        """Of one micro-batch."""
        return sum(sum(self.parts[phase].values()) for phase in phases)


class Stages:
    """Makes stages; blocks that are alike are costed once."""

    def __init__(self, setting: Setting) -> None:
        self.setting = s = setting
        self.blocks = {experts: self._block(experts) for experts in {False, bool(s.model.experts)}}
        first, last = messages.of_ends(s)
        self.first = segment("embedding", block.embedding(s), first, s, False)
        self.last = segment("head", block.head(s), last, s, False)

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
        weights = Weights(made.parameters() - local, local)
        return segment(name, kernels, sent, s, True), weights

    def make(self, first_block: int, blocks: int, first: bool, last: bool) -> Stage:
        """The stage of these blocks; `first` has the embedding, `last` the head."""
        s = self.setting
        every = s.model.moe_every
        kinds = [
            bool(s.model.experts) and (i + 1) % every == 0
            for i in range(first_block, first_block + blocks)
        ]
        found = [self.blocks[kind] for kind in kinds]
        ends = [self.first] * first + [self.last] * last
        outside = Weights(
            (s.model.embedding_parameters * first + s.model.head_parameters * last) / s.layout.tp
        )
        if (
            last and s.model.tied and s.layout.ends_apart
        ):  # a copy of the table, where the head is another rank's
            outside += Weights(s.model.vocabulary * s.model.hidden / s.layout.tp)
        parts: dict[str, Parts] = {phase: {} for phase in PHASES}
        flops: Parts = {}
        host: Parts = {}
        for each in [*(one for one, _ in found), *ends]:
            for phase in PHASES:
                add(parts[phase], each.parts[phase])
            add(flops, each.flops)
            add(host, each.host)
        wait_for_host(parts, host)
        if s.software.offload:
            self._offloaded(parts, kinds)
        if s.layout.stage == 3:
            # Before the embedding nothing is computed, and behind its backward pass; a tied head is one with it.
            edge = Weights(s.model.embedding_parameters / s.layout.tp if first else 0.0)
            self._gathered(parts, found, edge if s.layout.overlap_data else outside)
            self._copied(parts, sum((each for _, each in found), outside))
        weights = sum((each for _, each in found), outside)
        once = self._once(weights, found, sum(parts[INPUT].values()) + sum(parts[WEIGHT].values()))
        if s.model.tied and first != last:  # both ends have the table: its gradients are added up
            table = s.reduce * s.model.vocabulary * s.model.hidden / s.layout.tp
            once["averaging"] += ends_group(s.layout).seconds(s.hardware, "all_reduce", table)
        return Stage(parts, once, weights, flops)

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

    def _gathered(
        self, parts: dict[str, Parts], found: list[tuple[Segment, Weights]], outside: Weights
    ) -> None:
        """Sharded parameters (stage 3): gathers and scatters of one micro-batch, where they are seen."""
        s = self.setting
        overlap, reduces = s.layout.overlap_data, not s.layout.once
        every = s.layout.pp == 1 or s.layout.reshard_after_forward  # else gathered once a step
        costs = {each: self._exchange(each) for _, each in found}
        for made, weights in found:
            cost = costs[weights]
            gather = cost.gather if every else cost.gather / self.setting.micro_batches
            back = gather * (s.layout.reshard_after_forward and every) + cost.reduce * reduces
            for phase, sent, work in (
                (FORWARD, gather, made.seconds(FORWARD)),
                (INPUT, back, made.seconds(INPUT, WEIGHT)),
            ):
                seen, slower = sharding.hidden(sent, work, s.hardware, overlap)
                add(parts[phase], {"sharding": seen, "contention": slower})
        ends = self._exchange(outside)  # of what nothing is computed before, or behind
        edge = costs[found[0][1]] if found and overlap else sharding.Exchange(0.0, 0.0)
        share = 1 if every else 1 / s.micro_batches
        add(parts[FORWARD], {"sharding": share * (ends.gather + edge.gather)})
        add(parts[INPUT], {"sharding": (ends.reduce + edge.reduce) * reduces})

    def _copied(self, parts: dict[str, Parts], weights: Weights) -> None:
        """What gathers and reductions of one micro-batch copy, on the device itself."""
        s, moved = self.setting, sharding.copies(weights, self.setting)
        every = s.layout.pp == 1 or s.layout.reshard_after_forward
        share = 1 if every else 1 / s.micro_batches
        again = s.layout.reshard_after_forward and every
        add(parts[FORWARD], {"memory": share * moved.gather})
        add(parts[INPUT], {"memory": again * moved.gather + (not s.layout.once) * moved.reduce})

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
            return s.hardware.measured.optimizer
        states = precision_named(s.precision.states)
        shared, few = (s.layout.shared, s.layout.expert_copies) if s.layout.stage else (1, 1)
        mine = weights.dense / shared + weights.experts / few
        kept = optimizer_bytes(s.precision.states, s.precision.optimizer)
        updated = 2 * kept if states.master else 2 * kept + 2 * states.parameters
        gradients = max(states.gradients, s.accumulate)
        each = updated + states.parameters * bool(states.master) + 2 * gradients
        passes = 1.0 if s.software.optimizer_fused else UNFUSED_OPTIMIZER
        return moving(mine * each * passes, s.hardware).seconds
