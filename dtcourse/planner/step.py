"""predict(): a step put together from its stages, by the pipeline's own schedule."""

from __future__ import annotations

from typing import Any

from dtcourse.pipeline_parallel.simulate import Simulation, Times, simulate
from dtcourse.planner import memory, prediction
from dtcourse.planner.hardware import Hardware
from dtcourse.planner.layout import Batch, Layout, check, layers_of
from dtcourse.planner.model import Model
from dtcourse.planner.network import neighbour
from dtcourse.planner.prediction import Prediction
from dtcourse.planner.ranges import corners, likely
from dtcourse.planner.segments import FORWARD, INPUT, PHASES, WEIGHT, Parts, add
from dtcourse.planner.software import Precision, Software
from dtcourse.planner.stage import Setting, Stage, Stages


def predict(
    model: Model,
    hardware: Hardware | str,
    layout: Layout,
    batch: Batch,
    precision: Precision | None = None,
    software: Software | None = None,
    devices: int | None = None,
) -> Prediction:
    """Seconds of a training step on a cluster, what they are made of, its memory, and what limits it.

    hardware: or a name that Hardware.of knows
    devices:  how many there are, to be held against the layout

    Raises ValueError for a layout that is not possible (with the equation that fails), and unknown hardware.
    """
    card = Hardware.of(hardware) if isinstance(hardware, str) else hardware
    check(model, layout, batch, devices)
    given = (model, card, layout, batch, precision or Precision(), software or Software())
    found = _predict(Setting(*likely(given)))
    ends = [_predict(Setting(*each)).seconds for each in corners(given)]
    interval = (min([found.seconds, *ends]), max([found.seconds, *ends]))
    return Prediction(**{**vars(found), "interval": interval})


def _predict(setting: Setting) -> Prediction:
    s = setting
    stages = _stages(s)
    seconds, parts, simulation = _timed(s, stages)
    held = _memory(s, stages)
    largest = max(held, key=lambda each: sum(each.values()))
    fits = sum(largest.values()) <= s.hardware.memory
    tokens = s.batch.sequences * s.model.sequence
    peak = s.hardware.peak * s.layout.world
    rate = tokens / seconds
    again = s.software.again if s.software.recompute == "full" else 0.0
    performed = [sum(each.flops.values()) * s.micro_batches for each in stages]
    ranks = simulation.schedule.rank_of if simulation else [0]
    by_rank = dict.fromkeys(ranks, 0.0)
    for stage, flops in enumerate(performed):
        by_rank[ranks[stage]] += flops
    return Prediction(
        seconds=seconds,
        interval=(seconds, seconds),
        parts=parts,
        tokens_per_second=rate,
        mfu=rate * s.model.flops_per_token() / peak,
        hfu=rate * s.model.flops_per_token(again) / peak,
        memory=held,
        fits=fits,
        why=prediction.why(parts, fits, largest),
        flops=max(by_rank.values()),
    )


def _stages(s: Setting) -> list[Stage]:
    """All stages; those that are alike are one object."""
    made, stages, start = Stages(s), [], 0
    lengths = layers_of(s.model, s.layout)
    known: dict[Any, Stage] = {}
    for number, blocks in enumerate(lengths):
        first, last = number == 0, number == len(lengths) - 1
        key = (blocks, first, last, start % s.model.moe_every)
        if key not in known:
            known[key] = made.make(start, blocks, first, last)
        stages.append(known[key])
        start += blocks
    return stages


def _timed(s: Setting, stages: list[Stage]) -> tuple[float, dict[str, float], Simulation | None]:
    """(seconds of a step, what they are made of, the pipeline's simulation if there is one)."""
    if s.layout.pp == 1:
        parts = _total(stages, s.micro_batches)
        return sum(parts.values()), parts, None
    transfer = _transfer(s)
    fewer, more = _lengths(s.micro_batches, s.layout.pp)
    simulation = _simulated(s, stages, fewer, transfer)
    makespan = simulation.makespan
    if (
        fewer < s.micro_batches
    ):  # in the middle of a long step each round takes as long as the one before
        longer = _simulated(s, stages, more, transfer).makespan
        makespan += (longer - makespan) * (s.micro_batches - fewer) / (more - fewer)
    by_rank: dict[int, list[Stage]] = {}
    for number, stage in enumerate(stages):
        by_rank.setdefault(simulation.schedule.rank_of[number], []).append(stage)
    totals = [_total(each, s.micro_batches) for _, each in sorted(by_rank.items())]
    after = max(sum(v for each in own for v in each.once.values()) for own in by_rank.values())
    parts = max(totals, key=lambda each: sum(each.values()))
    seconds = max(makespan + after, sum(parts.values()))
    parts["bubble"] = seconds - sum(parts.values())
    return seconds, parts, simulation


def _lengths(micro_batches: int, pp: int) -> tuple[int, int]:
    """Numbers of micro-batches to simulate: one, or two from which the whole follows."""
    if micro_batches <= 8 * pp:
        return micro_batches, micro_batches
    fewer = 4 * pp + micro_batches % pp
    return fewer, fewer + pp


def _simulated(s: Setting, stages: list[Stage], micro_batches: int, transfer: float) -> Simulation:
    schedule = s.layout.schedule_of(micro_batches)
    times: dict[str, Any] = {
        name: [each.seconds(phase) for each in stages]
        for name, phase in (
            ("forward", FORWARD),
            ("backward_input", INPUT),
            ("backward_weight", WEIGHT),
        )
    }
    return simulate(schedule, Times(**times, transfer=transfer))


def _transfer(s: Setting) -> float:
    cut = s.layout.tp if s.layout.sequence_parallel else 1
    tokens = s.batch.micro_batch * s.model.sequence // s.layout.cp
    nbytes = tokens * s.model.hidden * s.precision.compute / cut
    return neighbour(s.layout, s.hardware, nbytes)


def _total(stages: list[Stage], micro_batches: int) -> dict[str, float]:
    """A rank's seconds by kind, without waiting."""
    total: Parts = {}
    for stage in stages:
        for phase in PHASES:
            add(total, stage.parts[phase], micro_batches)
        add(total, stage.once)
    return {kind: seconds for kind, seconds in total.items() if seconds}


def _memory(s: Setting, stages: list[Stage]) -> list[dict[str, float]]:
    """By rank of the pipeline."""
    lengths, pp = layers_of(s.model, s.layout), s.layout.pp
    if pp == 1:
        return [memory.stage_bytes(s, stages[0].weights, lengths[0], True, True, 1)]
    fewer, _ = _lengths(s.micro_batches, pp)
    schedule = s.layout.schedule_of(fewer)
    found = []
    for rank in range(pp):
        mine = [i for i, owner in enumerate(schedule.rank_of) if owner == rank]
        weights = stages[mine[0]].weights
        for i in mine[1:]:
            weights += stages[i].weights
        found.append(
            memory.stage_bytes(
                s, weights, sum(lengths[i] for i in mine), 0 in mine, len(stages) - 1 in mine,
                schedule.memory_bound[rank],
            )
        )  # fmt: skip
    return found
