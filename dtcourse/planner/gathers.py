"""Gathers and scatters of sharded parameters (stage 3) in a micro-batch, each behind what is computed meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from dtcourse.planner import sharding
from dtcourse.planner.segments import FORWARD, INPUT, WEIGHT, Parts, Segment, add
from dtcourse.planner.setting import Setting
from dtcourse.planner.sharding import Weights

Unit = tuple[Segment, Weights]


def gathered(
    s: Setting,
    parts: dict[str, Parts],
    found: Sequence[Unit],
    first: Unit | None,
    last: Unit | None,
) -> None:
    """Sharded parameters (stage 3): gathers and scatters of one micro-batch, where they are seen.

    A unit is gathered while the one before it is computed, and its gradients are scattered while those of the one
    before it are. The embedding comes first and its gradients last, beside nothing; a tied head is one with it.
    """
    every = s.layout.pp == 1 or s.layout.reshard_after_forward  # else gathered once a step
    nothing = sharding.Exchange(0.0, 0.0)
    known = {weights: sharding.exchange(weights, s) for _, weights in found}
    costs = [known[weights] for _, weights in found]
    edge = sharding.exchange(first[1], s) if first else nothing
    head = sharding.exchange(last[1], s) if last else nothing
    if last and s.model.tied and not s.layout.ends_apart:
        edge, head = (
            sharding.Exchange(edge.gather + head.gather, edge.reduce + head.reduce),
            nothing,
        )
    start = first[0] if first else None
    end = last[0] if last else None
    forward = [start, *(made for made, _ in found)]
    _hidden(s, parts, FORWARD, forward, [*(each.gather for each in costs), head.gather], every)
    add(parts[FORWARD], {"sharding": edge.gather * (1 if every else 1 / s.micro_batches)})
    # Backward the head's and all blocks', the last first. The head is still there, of the others one is gathered
    # while the one behind it is computed; the gradients of the one behind that are scattered.
    back = s.layout.reshard_after_forward and every
    costs, made = costs[::-1], [each for each, _ in found[::-1]]
    gathers = [back * each.gather for each in costs] + [0.0, 0.0]
    reduces = [0.0, *(each.reduce * (not s.layout.once) for each in [head, *costs])]
    sent = [x + y for x, y in zip(gathers, reduces, strict=True)]
    _hidden(s, parts, INPUT, [end, *made, start], sent, True)
    add(parts[INPUT], {"sharding": edge.reduce * (not s.layout.once)})


def _hidden(
    s: Setting,
    parts: dict[str, Parts],
    phase: str,
    work: list[Segment | None],
    sent: list[float],
    every: bool,
) -> None:
    """Adds what is seen of these messages, each sent during the work of the same place. every: micro-batch, else of
    the step's first alone.
    """
    phases = (FORWARD,) if phase == FORWARD else (INPUT, WEIGHT)
    share = 1 if every else 1 / s.micro_batches
    overlap = s.layout.overlap_data
    # Segments are compared as objects; most windows are alike.
    segments = {id(made): made for made in work}
    windows = Counter(zip(map(id, work), sent, strict=True))
    for (made, message), count in windows.items():
        behind = segments[made]
        seconds = behind.seconds(*phases) if behind else 0.0
        seen, slower = sharding.hidden(message, seconds, s.hardware, overlap)
        add(parts[phase], {"sharding": seen, "contention": slower}, share * count)


def copied(s: Setting, parts: dict[str, Parts], weights: Weights, found: Sequence[Unit]) -> None:
    """What gathers and reductions of one micro-batch copy, on the device itself. weights: of the stage; found: its
    blocks, which alone are gathered again for the backward pass.
    """
    moved = sharding.copies(weights, s)
    blocks = sharding.copies(sum((each for _, each in found), Weights(0.0)), s)
    every = s.layout.pp == 1 or s.layout.reshard_after_forward
    share = 1 if every else 1 / s.micro_batches
    again = s.layout.reshard_after_forward and every
    add(parts[FORWARD], {"memory": share * moved.gather})
    add(parts[INPUT], {"memory": again * blocks.gather + (not s.layout.once) * moved.reduce})
