"""The ranks of one axis as a cluster of their own, and what their collectives take: by the simulator's one function.

The ranks of an axis are `stride` apart, so a node holds node_size / stride of them. Its network cards are shared by all
the groups of that axis which lie in it, since they all send at once.
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
        inside = math.ceil(self.ranks / nodes)  # as even as they can be
        sharing = max(1, min(hardware.node_size, hardware.node_size // inside))
        cards = (hardware.cards or hardware.node_size) / sharing
        card = hardware.card * hardware.achieved
        if hardware.pod and self.ranks * self.stride > hardware.pod:
            card /= hardware.oversubscription
        whole = max(
            1, int(cards)
        )  # the simulator's cards are whole: what is left over makes them faster
        return Cluster(nodes, inside, hardware.inside, whole, card * cards / whole, hardware.like)

    def seconds(self, hardware: Hardware, collective: str, nbytes: float) -> float:
        """Of one collective, as in the simulator: bytes of the whole vector; of an all_to_all, of one rank's input."""
        if self.ranks == 1 or not nbytes:
            return 0.0
        if hardware.measured and hardware.measured.collective:
            return hardware.measured.collective(self.ranks, self.stride, collective, nbytes)
        return _seconds(self, hardware, collective, nbytes)


@lru_cache(maxsize=100_000)
def _seconds(group: Group, hardware: Hardware, collective: str, nbytes: float) -> float:
    where = group.cluster(hardware)
    beside = hardware.latency_between if where.nodes > 1 else hardware.latency_inside
    return beside + cluster_collectives.predict(where, collective, nbytes).seconds


def group(layout: Layout, *names: str) -> Group:
    """Of one axis, or of neighbouring ones together ("dp_shard", "cp")."""
    ranks = math.prod(getattr(layout, name) for name in names)
    last = max(layout.axes.index(name) for name in names)
    stride = math.prod(getattr(layout, name) for name in layout.axes[last + 1 :])
    return Group(ranks, stride)


def experts_group(layout: Layout) -> Group:
    """The ranks among which experts are given out: neighbours on dp_shard x cp, and on tp where expert_tp is less."""
    if layout.etp < layout.tp:
        return Group(layout.ep, group(layout, "tp").stride * layout.etp)
    return Group(layout.ep, group(layout, "dp_shard", "cp").stride)


def expert_slices(layout: Layout) -> Group:
    """The ranks that have the slices of one expert."""
    return Group(layout.etp, group(layout, "tp").stride)


def ends_group(layout: Layout) -> Group:
    """First and last stage, where these are not one rank's: both have a tied table."""
    apart = layout.pp - 1 if layout.ends_apart else 0
    return Group(2 if apart else 1, max(1, apart) * group(layout, "pp").stride)


def neighbour(layout: Layout, hardware: Hardware, nbytes: float) -> float:
    """Seconds of a message from one stage to the next, all ranks of a stage at once; of the slowest border, where only
    some of them are borders of nodes.
    """
    if layout.pp == 1 or not nbytes:
        return 0.0
    stride = group(layout, "pp").stride
    if hardware.measured and hardware.measured.collective:
        return hardware.measured.collective(2, stride, "send", nbytes)
    if layout.pp * stride <= hardware.node_size:
        return Group(2, 1).seconds(hardware, "send", nbytes)
    seconds = Group(2 * hardware.node_size, 1).seconds(hardware, "send", nbytes)
    above = hardware.pod and layout.pp * stride > hardware.pod
    return seconds * (hardware.oversubscription if above else 1.0)
