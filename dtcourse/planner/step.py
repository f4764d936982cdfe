"""predict(): a step put together from its stages, by the pipeline's own schedule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dtcourse.pipeline_parallel.simulate import Simulation, Times, simulate
from dtcourse.planner import memory, prediction
from dtcourse.planner.hardware import Hardware
from dtcourse.planner.impossible import check
from dtcourse.planner.layout import Batch, Layout, layers_of
from dtcourse.planner.model import Model
from dtcourse.planner.network import neighbour
from dtcourse.planner.pipelines import in_flight, least_makespan, rank_of, schedule_of
from dtcourse.planner.prediction import Prediction
from dtcourse.planner.ranges import corners, likely
from dtcourse.planner.segments import FORWARD, INPUT, PHASES, WEIGHT, Parts, add
from dtcourse.planner.setting import Setting
from dtcourse.planner.software import Precision, Software
from dtcourse.planner.stage import Stage, Stages


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
    given = (model, card, layout, batch, precision or Precision(), software or Software())
    found = predict_likely(Setting(*likely(given)), devices)
    ends = [found, *(predict_likely(Setting(*each), devices) for each in corners(given))]
    seconds, nbytes = ([each.seconds for each in ends], [each.peak_bytes for each in ends])
    return replace(
        found,
        interval=(min(seconds), max(seconds)),
        bytes_interval=(min(nbytes), max(nbytes)),
        surely_fits=all(each.fits for each in ends),
    )


def predict_likely(setting: Setting, devices: int | None = None) -> Prediction:
    """The same of known numbers: its intervals have no width."""
    s = setting
    check(s.model, s.layout, s.batch, devices)
    s.check()
    stages = _stages(s)
    seconds, parts, simulation = _timed(s, stages)
    held, host = _memory(s, stages)
    largest = max(held, key=lambda each: sum(each.values()))
    nbytes = sum(largest.values())
    tokens = s.batch.sequences * s.model.sequence
    peak = s.peak * s.layout.world
    model_flops = s.model.flops_per_token()
    twice = s.model.recomputed_flops(*s.software.twice)
    performed = [sum(each.flops.values()) * s.micro_batches for each in stages]
    ranks = simulation.schedule.rank_of if simulation else [0]
    by_rank = dict.fromkeys(ranks, 0.0)
    for stage, flops in enumerate(performed):
        by_rank[ranks[stage]] += flops
    fits = nbytes <= s.hardware.memory
    return Prediction(
        seconds=seconds,
        interval=(seconds, seconds),
        parts=parts,
        tokens_per_second=tokens / seconds,
        mfu=tokens * model_flops / seconds / peak,
        hfu=tokens * (model_flops + twice) / seconds / peak,
        memory=held,
        bytes_interval=(nbytes, nbytes),
        host_bytes=host,
        fits=fits,
        surely_fits=fits,
        why=prediction.why(parts, fits, largest),
        flops=max(by_rank.values()),
        convention=prediction.convention(s.peak, s.dtype, s.model.causal_flops),
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
    makespan, simulation = _makespan(s, stages, transfer(s))
    without, _ = _makespan(s, stages, 0.0)
    by_rank: dict[int, list[Stage]] = {}
    for number, stage in enumerate(stages):
        by_rank.setdefault(simulation.schedule.rank_of[number], []).append(stage)
    totals = [_total(each, s.micro_batches) for _, each in sorted(by_rank.items())]
    after = max(sum(v for each in own for v in each.once.values()) for own in by_rank.values())
    parts = max(totals, key=lambda each: sum(each.values()))
    seconds = max(makespan + after, sum(parts.values()))
    waits = seconds - sum(parts.values())
    parts["transfer"] = min(waits, max(0.0, makespan - without))
    parts["bubble"] = waits - parts["transfer"]
    return seconds, parts, simulation


def _makespan(s: Setting, stages: list[Stage], transfer: float) -> tuple[float, Simulation]:
    """Seconds until the last backward, and the simulation they are from."""
    fewer, more = _lengths(s)
    simulation = _simulated(s, stages, fewer, transfer)
    makespan = simulation.makespan
    if (
        fewer < s.micro_batches
    ):  # in the middle of a long step each round takes as long as the one before
        longer = _simulated(s, stages, more, transfer).makespan
        makespan += (longer - makespan) * (s.micro_batches - fewer) / (more - fewer)
        # Of uneven stages the rounds after these may be longer: never below what is proven of the whole.
        forward, inputs, weights = (
            [each.seconds(phase) for each in stages] for phase in (FORWARD, INPUT, WEIGHT)
        )
        name, ranks = str(s.layout.schedule), simulation.schedule.rank_of
        least = least_makespan(name, ranks, forward, inputs, weights, s.micro_batches, transfer)
        makespan = max(makespan, least)
    return makespan, simulation


def _lengths(s: Setting) -> tuple[int, int]:
    """Numbers of micro-batches to simulate: one, or two from which the whole follows."""
    m, pp = s.micro_batches, s.layout.pp
    # Of a schedule that is not known, or has rounds of another length than pp, the whole is simulated.
    uneven = s.layout.schedule == "interleaved" and m % pp
    if m <= 8 * pp or uneven or callable(s.layout.schedule):
        return m, m
    fewer = 4 * pp + m % pp
    return fewer, fewer + pp


def _simulated(s: Setting, stages: list[Stage], micro_batches: int, transfer: float) -> Simulation:
    schedule, order = schedule_of(s.layout, micro_batches)
    times: dict[str, Any] = {
        name: [each.seconds(phase) for each in stages]
        for name, phase in (
            ("forward", FORWARD),
            ("backward_input", INPUT),
            ("backward_weight", WEIGHT),
        )
    }
    waits = not s.layout.overlap_transfer
    given = Times(**times, transfer=transfer, sender_waits=waits)
    return simulate(schedule, given, order=order)


def transfer(s: Setting) -> float:
    """Seconds of a micro-batch's message from a stage to the next."""
    return neighbour(s.layout, s.hardware, s.rows * s.model.hidden * s.element)


def _total(stages: list[Stage], micro_batches: int) -> dict[str, float]:
    """A rank's seconds by kind, without waiting."""
    total: Parts = {}
    for stage in stages:
        for phase in PHASES:
            add(total, stage.parts[phase], micro_batches)
        add(total, stage.once)
    return {kind: seconds for kind, seconds in total.items() if seconds}


def _memory(s: Setting, stages: list[Stage]) -> tuple[list[dict[str, float]], float]:
    """By rank of the pipeline; and the most that one of them has in its host's memory."""
    lengths, layout = layers_of(s.model, s.layout), s.layout
    shape = (layout.schedule, layout.pp, layout.chunks)
    # By the step's own schedule: of some the memory grows with each micro-batch (gpipe, breadth-first).
    owners, kept = rank_of(*shape), in_flight(*shape, s.micro_batches)
    found, host, held = [], 0.0, memory.Held.of(s)
    for rank in range(layout.pp):
        mine = [stage for stage, owner in enumerate(owners) if owner == rank]
        units = [each for i in mine for each in stages[i].units]
        blocks = sum(lengths[i] for i in mine)
        last = len(stages) - 1 in mine
        found.append(memory.stage_bytes(s, units, blocks, last, kept[rank], held))
        host = max(host, memory.host_bytes(s, blocks, kept[rank]))
    return found, host
