"""A pipeline's stage: its blocks, perhaps the embedding or the head, and what a micro-batch takes in it.

Also what belongs to a stage once a step: gradients averaged, the optimizer.
"""

from __future__ import annotations

from dataclasses import dataclass

from dtcourse.planner import block, ends, memory, messages, sharding
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

    weights: numbers that a rank computes with, and by unit, in order: the embedding's, each block's, the head's
    flops:   by phase, of one micro-batch, on one rank
    """

    parts: dict[str, Parts]
    once: Parts
    units: tuple[Weights, ...]
    flops: dict[str, float]

    @property
    def weights(self) -> Weights:
        """Of all units."""
        return sum(self.units, Weights(0.0))

    def seconds(self, *phases: str) -> float:
        """Of one micro-batch."""
        return sum(sum(self.parts[phase].values()) for phase in phases)


class Stages:
    """Makes stages; blocks that are alike are costed once."""

    def __init__(self, setting: Setting) -> None:
        self.setting = s = setting
        self.blocks = {experts: self._block(experts) for experts in {False, bool(s.model.experts)}}
        first, last = messages.of_ends(s)
        self.embedding = (
            segment("embedding", ends.embedding(s), first, s, False),
            Weights(s.model.embedding_parameters / s.layout.tp),
        )
        numbers = s.model.head_parameters
        if (
            s.model.tied and s.layout.ends_apart
        ):  # a copy of the table, for the head is another rank's
            numbers += s.model.vocabulary * s.model.hidden
        self.head = (segment("head", ends.head(s), last, s, False), Weights(numbers / s.layout.tp))

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

    def make(self, first_block: int, blocks: int, first: bool, last: bool) -> Stage:
        """The stage of these blocks; `first` has the embedding, `last` the head."""
        s = self.setting
        every = s.model.moe_every
        kinds = [
            bool(s.model.experts) and (i + 1) % every == 0
            for i in range(first_block, first_block + blocks)
        ]
        found = [self.blocks[kind] for kind in kinds]
        units = [*[self.embedding] * first, *found, *[self.head] * last]
        parts: dict[str, Parts] = {phase: {} for phase in PHASES}
        flops: Parts = {}
        host: Parts = {}
        for each, _ in units:
            for phase in PHASES:
                add(parts[phase], each.parts[phase])
            add(flops, each.flops)
            add(host, each.host)
        if s.software.offload:
            self._offloaded(parts, kinds)
        weights = sum((each for _, each in units), Weights(0.0))
        if s.layout.stage == 3:
            self._gathered(parts, found, first, last)
            self._copied(parts, weights)
        wait_for_host(parts, host)  # which runs on while messages are waited for
        once = self._once(weights, found, sum(parts[INPUT].values()) + sum(parts[WEIGHT].values()))
        if s.model.tied and first != last:  # both ends have the table: its gradients are added up
            table = s.reduce * s.model.vocabulary * s.model.hidden / s.layout.tp
            once["averaging"] += ends_group(s.layout).seconds(s.hardware, "all_reduce", table)
        return Stage(parts, once, tuple(each for _, each in units), flops)

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
        self, parts: dict[str, Parts], found: list[tuple[Segment, Weights]], first: bool, last: bool
    ) -> None:
        """Sharded parameters (stage 3): gathers and scatters of one micro-batch, where they are seen.

        A unit is gathered while the one before it is computed, and its gradients are scattered while those of the one
        before it are. The embedding comes first and its gradients last, beside nothing; a tied head is one with it.
        """
        s = self.setting
        every = s.layout.pp == 1 or s.layout.reshard_after_forward  # else gathered once a step
        nothing = sharding.Exchange(0.0, 0.0)
        known = {weights: self._exchange(weights) for _, weights in found}
        costs = [known[weights] for _, weights in found]
        edge = self._exchange(self.embedding[1]) if first else nothing
        head = self._exchange(self.head[1]) if last else nothing
        if last and s.model.tied and not s.layout.ends_apart:
            edge, head = (
                sharding.Exchange(edge.gather + head.gather, edge.reduce + head.reduce),
                nothing,
            )
        start = self.embedding[0] if first else None
        end = self.head[0] if last else None
        forward = [start, *(made for made, _ in found)]
        self._hidden(
            parts, FORWARD, forward, [*(each.gather for each in costs), head.gather], every
        )
        add(parts[FORWARD], {"sharding": edge.gather * (1 if every else 1 / s.micro_batches)})
        # Backward the head's and all blocks', the last first. The head is still there, of the others one is gathered
        # while the one behind it is computed; the gradients of the one behind that are scattered.
        back = s.layout.reshard_after_forward and every
        costs, made = costs[::-1], [each for each, _ in found[::-1]]
        gathers = [back * each.gather for each in costs] + [0.0, 0.0]
        reduces = [0.0, *(each.reduce * (not s.layout.once) for each in [head, *costs])]
        sent = [x + y for x, y in zip(gathers, reduces, strict=True)]
        self._hidden(parts, INPUT, [end, *made, start], sent, True)
        add(parts[INPUT], {"sharding": edge.reduce * (not s.layout.once)})

    def _hidden(
        self,
        parts: dict[str, Parts],
        phase: str,
        work: list[Segment | None],
        sent: list[float],
        every: bool,
    ) -> None:
        """Adds what is seen of these messages, each sent during the work of the same place. every: micro-batch, else of
        the step's first alone.
        """
        s, phases = self.setting, (FORWARD,) if phase == FORWARD else (INPUT, WEIGHT)
        share = 1 if every else 1 / s.micro_batches
        for made, message in zip(work, sent, strict=True):
            seconds = made.seconds(*phases) if made else 0.0
            overlap = s.layout.overlap_data
            seen, slower = sharding.hidden(message, seconds, s.hardware, overlap)
            add(parts[phase], {"sharding": share * seen, "contention": share * slower})

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
