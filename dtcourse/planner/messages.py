"""What a block, the embedding and the head send while a micro-batch is computed: seconds by kind and phase.

Only what the computation waits for is counted; what sharded parameters and gradients cost is in sharding.py.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from dtcourse.planner.network import expert_slices, experts_group, group
from dtcourse.planner.setting import Setting

FORWARD, INPUT = "forward", "input"


@dataclass
class Messages:
    """seconds: by phase and kind ("tensor", "context", "experts"); count: collectives, by the same; last: seconds of a
    block's last sum over tensor ranks.
    """

    seconds: dict[str, dict[str, float]] = field(
        default_factory=lambda: {FORWARD: defaultdict(float), INPUT: defaultdict(float)}
    )
    count: dict[str, dict[str, float]] = field(
        default_factory=lambda: {FORWARD: defaultdict(float), INPUT: defaultdict(float)}
    )

    last: float = 0.0

    def add(self, phase: str, kind: str, seconds: float, count: float = 1) -> None:
        """So many collectives that take this long in all."""
        self.seconds[phase][kind] += seconds
        self.count[phase][kind] += count


def of_block(setting: Setting, experts: bool, core: float, weights: float) -> Messages:
    """Of one block. core: seconds of attention's core forward, behind which a ring hides; weights: of its gradients of
    weights, behind which backward sums do.
    """
    s, found = setting, Messages()
    if s.layout.tp > 1:
        _tensor(found, s, 1 + (not experts or s.model.shared > 0), weights)
    if s.layout.cp > 1:
        _context(found, s, core)
    if experts:
        _experts(found, s)
    return found


def _experts(found: Messages, s: Setting) -> None:
    """To the experts and back (all-to-all of the rows sent), and among the ranks that have slices of an expert."""
    layout, row = s.layout, s.model.hidden * s.element
    # With sequence_parallel each tp rank sends its part of the tokens; else all have the same and send them all.
    own = s.rows * s.model.top_k * row * s.received / s.dispatched
    if layout.ep > 1:
        each = experts_group(layout).seconds(s.hardware, "all_to_all", own)
        for phase in (FORWARD, INPUT):
            found.add(phase, "experts", 2 * each, 2)
    if layout.etp == 1:
        return
    slices = expert_slices(layout)
    if (
        s.layout.sequence_parallel
    ):  # the tokens of all ranks that have a slice, each to all of these, and sums back
        nbytes = own * layout.etp
        kinds = ("all_gather", "reduce_scatter")
        pair = sum(slices.seconds(s.hardware, kind, nbytes) for kind in kinds)
    else:  # what the experts have made is summed after it is combined
        pair = slices.seconds(s.hardware, "all_reduce", s.tokens * row)
    for phase in (FORWARD, INPUT):
        shown = pair * (1 - layout.overlap_tensor)
        found.add(phase, "tensor", shown, 2 if layout.sequence_parallel else 1)


def _tensor(found: Messages, s: Setting, pairs: int, weights: float) -> None:
    """pairs: how many of a block's two halves tensor parallelism cuts."""
    ranks, nbytes = group(s.layout, "tp"), s.tokens * s.model.hidden * s.element
    shown = 1 - s.layout.overlap_tensor
    if s.layout.sequence_parallel:
        kinds = ("all_gather", "reduce_scatter")
        both = [ranks.seconds(s.hardware, each, nbytes) for each in kinds]
        pair, found.last = sum(both), both[1] * shown
        for phase in (FORWARD, INPUT):
            found.add(phase, "tensor", pairs * pair * shown, 2 * pairs)
        # What the weights' gradients need is gathered once more, behind a product (2205.05198, section 4.2.2).
        found.count[INPUT]["tensor"] += pairs
        return
    each = ranks.seconds(s.hardware, "all_reduce", nbytes)
    found.last = each * shown
    found.add(FORWARD, "tensor", pairs * each * shown, pairs)
    # Behind the gradients of the weights that take what is summed: about half of all.
    behind = weights / 4 if s.layout.overlap_backward else 0.0
    found.add(INPUT, "tensor", pairs * max(0.0, each * shown - behind), pairs)


def _context(found: Messages, s: Setting, core: float) -> None:
    """Keys and values, or heads, of all cp ranks; core: seconds of attention forward."""
    layout, ranks = s.layout, group(s.layout, "cp")
    per = s.tokens * s.element
    pairs = 2 * per * max(s.model.keys // layout.tp, s.model.head)
    if layout.context == "ring":
        one = ranks.seconds(s.hardware, "all_gather", pairs * layout.cp) / (layout.cp - 1)
        for phase, times in ((FORWARD, 1), (INPUT, 2)):
            hidden = core * times / layout.cp
            seen = (layout.cp - 1) * max(0.0, times * one - hidden)
            found.add(phase, "context", seen, layout.cp - 1)
    elif layout.context == "all_gather":
        gather = ranks.seconds(s.hardware, "all_gather", pairs * layout.cp)
        found.add(FORWARD, "context", gather)
        back = ranks.seconds(s.hardware, "reduce_scatter", pairs * layout.cp)
        found.add(INPUT, "context", gather + back, 2)
    else:
        # Heads of keys and values that are fewer than the ranks are copied first.
        keys = max(s.model.keys // layout.tp, s.model.head * layout.cp)
        wide = (s.model.queries // layout.tp, keys)
        both = sum(2 * ranks.seconds(s.hardware, "all_to_all", per * each) for each in wide)
        for phase in (FORWARD, INPUT):
            found.add(phase, "context", both, 4)


def of_ends(setting: Setting) -> tuple[Messages, Messages]:
    """(of the embedding, of the head): sums over the parts of the vocabulary."""
    s, first, last = setting, Messages(), Messages()
    if s.layout.tp == 1:
        return first, last
    ranks, nbytes = group(s.layout, "tp"), s.tokens * s.model.hidden * s.element

    def seconds(kind: str, size: float = nbytes) -> float:
        return ranks.seconds(s.hardware, kind, size)

    if (
        s.layout.sequence_parallel
    ):  # cut along the tokens between: scattered behind the embedding, gathered for the head
        first.add(FORWARD, "tensor", seconds("reduce_scatter"))
        first.add(INPUT, "tensor", seconds("all_gather"))
        last.add(FORWARD, "tensor", seconds("all_gather"))
        last.add(INPUT, "tensor", seconds("reduce_scatter"))
    else:
        first.add(FORWARD, "tensor", seconds("all_reduce"))
        last.add(INPUT, "tensor", seconds("all_reduce"))
    if s.loss == "eager":  # it knows of no parts: all logits go to all ranks
        logits = s.tokens * s.model.vocabulary * s.element
        last.add(FORWARD, "tensor", seconds("all_gather", logits))
    else:
        # The largest logit, the sum of exponents and the target's logit, in float32 (Megatron's loss).
        last.add(FORWARD, "tensor", 3 * seconds("all_reduce", 4.0 * s.tokens), 3)
    return first, last
