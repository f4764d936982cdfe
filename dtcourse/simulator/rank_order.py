"""Which axis of a mesh goes inside the node: the order of the axes decides whose neighbours share an NVSwitch.

    order = ("pp", "dp", "tp")                 # of init_device_mesh: ranks of the last axis are next to each other
    groups({"pp": 2, "dp": 2, "tp": 2}, "dp")  # [[0, 2], [1, 3], [4, 6], [5, 7]]
    seconds(Cluster.of("H100", nodes=4), sizes, [Use("tp", "all_reduce", 64e6, times=96), ...])

A group of an axis lies in one node where the axes after it, and it itself, fit into the node. All groups talk
at once, so the node's cards are shared by the groups that have ranks in it. `orders` tries every order of the axes.

Left out: what overlaps with computing or with another axis's messages, and groups that meet on a switch between nodes.
Source of the rule (tensor parallelism inside the node, pipelines across): Narayanan et al. 2021, arXiv:2104.04473.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch

from dtcourse.simulator.cluster import Cluster
from dtcourse.simulator.cluster_collectives import predict


@dataclass(frozen=True)
class Use:
    """What a step sends over an axis: `times` collectives of its groups, each of nbytes as predict() counts them."""

    axis: str
    collective: str
    nbytes: float
    times: int = 1


class UnevenGroups(ValueError):
    """An axis whose groups have unlike shares of their nodes: no one cluster stands for them all."""


def groups(sizes: Mapping[str, int], axis: str) -> list[list[int]]:
    """The ranks of each group of an axis; sizes: of each axis, in the mesh's order."""
    ranks = torch.arange(math.prod(sizes.values())).view(*sizes.values())
    return ranks.movedim(_place(sizes, axis), -1).reshape(-1, sizes[axis]).tolist()


def spread(sizes: Mapping[str, int], axis: str, gpus: int) -> tuple[int, int]:
    """(nodes that a group of this axis lies on, its ranks in each of these) for nodes of `gpus` GPUs.

    Raises UnevenGroups where a group has not equally many ranks in each of its nodes.
    """
    found = set()
    for group in groups(sizes, axis):
        counts = Counter(rank // gpus for rank in group)
        found |= {(len(counts), count) for count in counts.values()}
    if len(found) > 1:
        named = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UnevenGroups(
            f"axes {named} on nodes of {gpus}: groups of {axis} do not lie alike on their nodes; "
            "choose sizes of which some product, from the last axis on, is the node's"
        )
    return found.pop()


def part_of(cluster: Cluster, sizes: Mapping[str, int], axis: str) -> Cluster:
    """The cluster that a group of this axis has to itself while all groups of the axis talk."""
    nodes, gpus = spread(sizes, axis, cluster.gpus)
    if nodes == 1:
        return replace(cluster, nodes=1, gpus=gpus)
    share = cluster.cards * gpus / cluster.gpus
    cards = max(1, int(share))
    return replace(cluster, nodes=nodes, gpus=gpus, cards=cards, card=cluster.card * share / cards)


def seconds(cluster: Cluster, sizes: Mapping[str, int], uses: Sequence[Use]) -> dict[str, float]:
    """Seconds of each axis's messages in a step, one after the other. sizes: of each axis, in the mesh's order.

    Raises ValueError where the axes' product is not the cluster's GPUs.
    """
    ranks = math.prod(sizes.values())
    if ranks != cluster.ranks:
        equation = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(
            f"{equation} = {ranks} ranks, and {cluster.nodes} nodes of {cluster.gpus} have {cluster.ranks} GPUs"
        )
    found = dict.fromkeys(sizes, 0.0)
    for use in uses:
        where = part_of(cluster, sizes, use.axis)
        found[use.axis] += use.times * predict(where, use.collective, use.nbytes).seconds
    return found


def orders(
    cluster: Cluster, sizes: Mapping[str, int], uses: Sequence[Use]
) -> dict[tuple[str, ...], float]:
    """Seconds of a step's messages for every order of the axes, the fastest first; what lies unevenly is left out."""
    found = {}
    for order in itertools.permutations(sizes):
        ordered = {name: sizes[name] for name in order}
        with suppress(UnevenGroups):
            found[order] = sum(seconds(cluster, ordered, uses).values())
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _place(sizes: Mapping[str, int], axis: str) -> int:
    if axis not in sizes:
        raise ValueError(f"no axis {axis!r}; the mesh has {', '.join(sizes)}")
    return list(sizes).index(axis)
