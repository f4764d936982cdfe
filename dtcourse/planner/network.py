"""The ranks of one axis as a cluster of their own, and what their collectives take: by the simulator's one function.

An axis of n ranks, `stride` apart, has as many of them in a node as the strides that fit; the node's cards are shared
by all the groups of that axis that lie in it, since they all send at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from dtcourse.planner.hardware import Hardware
from dtcourse.planner.layout import Layout
from dtcourse.simulator import cluster_collectives
from dtcourse.simulator.cluster import Cluster


@dataclass(frozen=True)
class Group:
    """Ranks that take part in a collective: how many, and how far apart in the order of ranks."""

    ranks: int
    stride: int = 1

    def cluster(self, hardware: Hardware) -> Cluster:
        """Their nodes, with each group's share of the cards."""
        inside = min(self.ranks, max(1, hardware.node_size // self.stride))
        nodes = math.ceil(self.ranks / inside)
        sharing = max(1, min(hardware.node_size, hardware.node_size // inside))
        cards = hardware.cards / sharing
        card = hardware.card * hardware.achieved
        if hardware.pod and self.ranks * self.stride > hardware.pod:
            card /= hardware.oversubscription
        if cards < 1:
            card, cards = card * cards, 1
        return Cluster(nodes, inside, hardware.inside, int(cards), card, hardware.like)

    def seconds(self, hardware: Hardware, collective: str, nbytes: float) -> float:
        """Of one collective, as in the simulator: bytes of the whole vector; of an all_to_all, of one rank's input."""
        if self.ranks == 1 or not nbytes:
            return 0.0
        return _seconds(self, hardware, collective, nbytes)


@lru_cache(maxsize=100_000)
def _seconds(group: Group, hardware: Hardware, collective: str, nbytes: float) -> float:
    return cluster_collectives.predict(group.cluster(hardware), collective, nbytes).seconds


def group(layout: Layout, *names: str) -> Group:
    """Of one axis, or of neighbouring ones together ("dp_shard", "cp")."""
    ranks = math.prod(getattr(layout, name) for name in names)
    last = max(layout.axes.index(name) for name in names)
    stride = math.prod(getattr(layout, name) for name in layout.axes[last + 1 :])
    return Group(ranks, stride)


def experts_group(layout: Layout) -> Group:
    """The ranks among which experts are given out: neighbours on dp_shard x cp."""
    return Group(layout.ep, group(layout, "dp_shard", "cp").stride)


def neighbour(layout: Layout, hardware: Hardware, nbytes: float) -> float:
    """Seconds of a message from one stage to the next, all ranks of a stage at once."""
    if layout.pp == 1 or not nbytes:
        return 0.0
    stride = group(layout, "pp").stride
    if stride < hardware.node_size:
        return Group(2, 1).seconds(hardware, "send", nbytes)
    return Group(2 * hardware.node_size, 1).seconds(hardware, "send", nbytes)
