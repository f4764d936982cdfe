"""What a block, the embedding and the head send while a micro-batch is computed: seconds by kind and phase.

Only what the computation waits for is counted; what sharded parameters and gradients cost is in sharding.py.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from dtcourse.planner.hardware import Hardware
from dtcourse.planner.layout import Layout
from dtcourse.planner.model import Model
from dtcourse.planner.network import Group, experts_group, group

FORWARD, INPUT = "forward", "input"


@dataclass
class Messages:
    """seconds: by phase and kind ("tensor", "context", "experts"); count: collectives, by phase."""

    seconds: dict[str, dict[str, float]] = field(
        default_factory=lambda: {FORWARD: defaultdict(float), INPUT: defaultdict(float)}
    )
    count: dict[str, float] = field(default_factory=lambda: {FORWARD: 0.0, INPUT: 0.0})

    def add(self, phase: str, kind: str, seconds: float, count: float = 1) -> None:
        """So many collectives that take this long in all."""
        self.seconds[phase][kind] += seconds
        self.count[phase] += count


def of_block(
    model: Model,
    hardware: Hardware,
    layout: Layout,
    micro_batch: int,
    element: int,
    experts: bool,
    attention_seconds: float,
) -> Messages:
    """Of one block. element: bytes of an activation; attention_seconds: of its core, behind which a ring hides."""
    found = Messages()
    tokens = micro_batch * model.sequence // layout.cp
    if layout.tp > 1:
        _tensor(found, layout, group(layout, "tp"), hardware, tokens * model.hidden * element)
    if layout.cp > 1:
        _context(found, model, layout, hardware, tokens * element, attention_seconds)
    if experts and layout.ep > 1:
        among = experts_group(layout)
        # tp ranks have the same tokens: each sends its part of them, where sequences are cut
        cut = layout.tp if layout.sequence_parallel else 1
        nbytes = tokens * model.top_k * model.hidden * element / cut
        each = among.seconds(hardware, "all_to_all", nbytes)
        for phase in (FORWARD, INPUT):
            found.add(phase, "experts", 2 * each, 2)
    return found


def _tensor(
    found: Messages, layout: Layout, ranks: Group, hardware: Hardware, nbytes: float
) -> None:
    shown = 1 - layout.overlap_tensor
    if layout.sequence_parallel:
        pair = sum(
            ranks.seconds(hardware, each, nbytes) for each in ("all_gather", "reduce_scatter")
        )
        for phase in (FORWARD, INPUT):
            found.add(phase, "tensor", 2 * pair * shown, 4)
        # What the weights' gradients need is gathered once more, behind a product (2205.05198, section 4.2.2).
        found.count[INPUT] += 2
        return
    each = ranks.seconds(hardware, "all_reduce", nbytes)
    for phase in (FORWARD, INPUT):
        found.add(phase, "tensor", 2 * each * shown, 2)


def _context(
    found: Messages, model: Model, layout: Layout, hardware: Hardware, per: float, core: float
) -> None:
    """per: bytes of one number for each token of a rank; core: seconds of attention forward."""
    ranks = group(layout, "cp")
    heads = max(model.keys // layout.tp, model.head)
    pairs = 2 * per * heads
    if layout.context == "ring":
        one = ranks.seconds(hardware, "all_gather", pairs * layout.cp) / (layout.cp - 1)
        for phase, times in ((FORWARD, 1), (INPUT, 2)):
            hidden = core * (1 if phase == FORWARD else 2) / layout.cp
            found.add(
                phase, "context", (layout.cp - 1) * max(0.0, times * one - hidden), layout.cp - 1
            )
    elif layout.context == "all_gather":
        found.add(FORWARD, "context", ranks.seconds(hardware, "all_gather", pairs * layout.cp))
        again = ranks.seconds(hardware, "all_gather", pairs * layout.cp)
        back = ranks.seconds(hardware, "reduce_scatter", pairs * layout.cp)
        found.add(INPUT, "context", again + back, 2)
    else:
        wide = (2 * model.queries + 2 * model.keys) / layout.tp
        for phase in (FORWARD, INPUT):
            found.add(phase, "context", ranks.seconds(hardware, "all_to_all", per * wide), 4)


def of_ends(
    model: Model, hardware: Hardware, layout: Layout, micro_batch: int, element: int
) -> tuple[Messages, Messages]:
    """(of the embedding, of the head): sums over the parts of the vocabulary."""
    first, last = Messages(), Messages()
    if layout.tp == 1:
        return first, last
    ranks = group(layout, "tp")
    tokens = micro_batch * model.sequence // layout.cp
    one = ranks.seconds(hardware, "all_reduce", tokens * model.hidden * element)
    first.add(FORWARD, "tensor", one)
    last.add(INPUT, "tensor", one)
    # The largest logit, the sum of exponents and the target's logit, in float32 (Megatron's loss).
    last.add(FORWARD, "tensor", 3 * ranks.seconds(hardware, "all_reduce", 4.0 * tokens), 3)
    return first, last
