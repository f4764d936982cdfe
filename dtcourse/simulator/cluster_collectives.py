"""How long a collective takes on a cluster: inside a node, between nodes, or on any graph whose links are shared.

    h100 = Cluster.of("H100", nodes=8)
    predict(h100, "all_reduce", 16e9).seconds          # by what NCCL would choose
    predict(h100, "all_reduce", 64e3, "ring", "LL")    # by this algorithm and protocol
    predict(leaf_spine(...), "all_reduce", 1e9, "ring")

A ring per network card: each carries its part of the vector through every node and leaves by its own card, so that a
node sends with all cards at once. Bytes on NVLink and bytes on the cards are under way together; the slower of the two
decides (`limit`). What is left of a wire's rate, and the latency, are NCCL's own figures (nccl.py).

Against published measurements (S. Bekman's ml-engineering; tests/simulator/test_cluster_collectives.py): from 512 MiB
on 0.85 to 1.07 of the measured time, for 4 to 8 H200 or B200 and 8 A100 in a node, 32 H200 or B200 on 4 nodes. Shorter
messages take longer than predicted: on 8 H200 39 µs at the least, of which NCCL counts 15; on 4 nodes with EFA 360 µs,
of which it counts 70. There the prediction is a lower bound.

Left out: what the host takes to launch; a way between GPU and card (PCIe) slower than the card; other traffic;
switches between nodes that are oversubscribed (draw these as a graph). A graph has no latencies and no protocols.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dtcourse.simulator import nccl, shared_links
from dtcourse.simulator.cluster import Cluster
from dtcourse.simulator.hardware import published
from dtcourse.simulator.topology import Topology

__all__ = ["Cluster", "Prediction", "bytes_on_links", "predict"]


@dataclass(frozen=True)
class Prediction:
    """seconds: in all. latency, inside, between: its parts; bytes inside and between are under way together.

    limit:    "latency", "inside" (NVLink), "between" (the cards), or the busiest link of a graph
    protocol: "" where there is none
    """

    seconds: float
    latency: float
    inside: float
    between: float
    algorithm: str
    protocol: str
    limit: str


def predict(
    where: Cluster | Topology,
    collective: str,
    nbytes: float,
    algorithm: str | None = None,
    protocol: str | None = None,
) -> Prediction:
    """How long one collective of all ranks takes, if nothing else is sent.

    collective: all_reduce, reduce_scatter, all_gather, broadcast, all_to_all; on a cluster also send: every GPU to one
                in another node at once (of one node: to one in it)
    nbytes:     of the whole vector; all_to_all: of one rank's input; send: of one message
    algorithm:  of nccl.ALGORITHMS, on a graph of shared_links.ROUNDS, or "two_level" for an all_reduce: reduce-scatter
                inside, all-reduce between, all-gather inside, one after the other. None: the fastest that NCCL has
    protocol:   LL, LL128 or Simple. None: the fastest

    Raises ValueError for what is not known or not possible there, and for negative bytes.
    """
    if isinstance(where, Topology):
        return _on_graph(where, collective, nbytes, algorithm, protocol)
    if collective not in nccl.ALGORITHMS:
        raise ValueError(f"there are {', '.join(nccl.ALGORITHMS)}; got {collective!r}")
    if not nbytes >= 0:
        raise ValueError(f"bytes are 0 or more; got {nbytes}")
    if protocol not in (None, *nccl.PROTOCOLS):
        raise ValueError(f"protocols are {', '.join(nccl.PROTOCOLS)}; got {protocol!r}")
    if algorithm == "two_level":
        return _two_levels(where, collective, nbytes, protocol)
    if algorithm not in (None, *nccl.ALGORITHMS[collective]):
        known = ", ".join(nccl.ALGORITHMS[collective])
        raise ValueError(f"NCCL has {known} for {collective}; got {algorithm!r}")
    if where.ranks == 1 or nbytes == 0:
        return Prediction(0.0, 0.0, 0.0, 0.0, algorithm or "", protocol or "", "latency")
    found = [
        _one(where, collective, nbytes, each, spoken)
        for each in ([algorithm] if algorithm else nccl.ALGORITHMS[collective])
        for spoken in nccl.SPOKEN[each]
        if protocol in (None, spoken) and (each != "switch" or _adds(where))
    ]
    if not found:
        asked = f"{algorithm or collective} by {protocol or 'any protocol'}"
        raise ValueError(
            f"{asked} is not possible on {where.nodes} nodes of {where.gpus} {where.gpu}"
        )
    return min(found, key=lambda each: each.seconds)


def _adds(where: Cluster) -> bool:
    return where.nodes == 1 and published("nccl_model")["nvls_efficiency"][where.gpu] > 0


def bytes_on_links(
    where: Cluster, collective: str, algorithm: str, nbytes: float
) -> tuple[float, float]:
    """(what the busiest GPU sends over NVLink, what a node sends over all its cards), in bytes.

    A ring: all of a GPU's share goes to the next GPU, and in one of a node's rings that one is in the next node.
    """
    p, g, several = where.ranks, where.gpus, where.nodes > 1
    if algorithm == "direct" and collective == "send":
        return (0.0, g * nbytes) if several else (nbytes, 0.0)
    if algorithm == "direct":
        return (g - 1) / p * nbytes, g * (p - g) / p * nbytes
    if algorithm == "switch":  # up once, to be added; and its own part of the sum once more, to all
        return (1 + 1 / g) * nbytes, 0.0
    if algorithm == "tree":  # up and down, as NCCL counts it
        return (2 * nbytes if g > 1 else 0.0), (2 * nbytes if several else 0.0)
    sent = nbytes if collective == "broadcast" else nccl.steps(collective, p) / p * nbytes
    leaves = (where.cards // g) / where.cards if several else 0.0
    return (sent * (1 - leaves) if g > 1 else 0.0), (sent if several else 0.0)


def _one(
    where: Cluster, collective: str, nbytes: float, algorithm: str, protocol: str
) -> Prediction:
    """By one algorithm and protocol."""
    sent = bytes_on_links(where, collective, algorithm, nbytes)
    inside, between = (
        each / nccl.bandwidth(algorithm, protocol, wire, nbytes, where.nodes, where.gpu)
        if each
        else 0.0
        for each, wire in zip(sent, (where.used_inside, where.used_between), strict=True)
    )
    latency = nccl.latency(algorithm, protocol, collective, nbytes, where.nodes, where.gpus)
    parts = {"latency": latency, "inside": inside, "between": between}
    total = latency + max(inside, between)
    return Prediction(total, **parts, algorithm=algorithm, protocol=protocol, limit=_most(parts))


def _two_levels(where: Cluster, collective: str, nbytes: float, protocol: str | None) -> Prediction:
    """Three collectives one after the other; those between nodes, one per GPU of a node, share the cards."""
    if collective != "all_reduce":
        raise ValueError(f"two_level is an all_reduce; got {collective!r}")
    node = replace(where, nodes=1)
    share = where.cards * where.card / where.gpus
    across = replace(where, gpus=1, cards=min(where.cards, 1), card=share)
    phases = [
        predict(node, "reduce_scatter", nbytes, None, protocol),
        predict(across, "all_reduce", nbytes / where.gpus, None, protocol),
        predict(node, "all_gather", nbytes, None, protocol),
    ]
    latency = math.fsum(each.latency for each in phases)
    inside, between = phases[0].inside + phases[2].inside, phases[1].between
    spoken = "/".join(each.protocol for each in phases)
    limit = _most({"latency": latency, "inside": inside, "between": between})
    return Prediction(
        latency + inside + between, latency, inside, between, "two_level", spoken, limit
    )


def _on_graph(
    where: Topology, collective: str, nbytes: float, algorithm: str | None, protocol: str | None
) -> Prediction:
    """By the links of a graph alone."""
    if protocol is not None:
        raise ValueError(f"protocols are of a Cluster; a graph has none, got {protocol!r}")
    names = [algorithm] if algorithm else list(shared_links.ROUNDS.get(collective, ["ring"]))
    power = not len(where.hosts) & (len(where.hosts) - 1)
    found = {
        name: shared_links.seconds(where, name, collective, nbytes)
        for name in names
        if algorithm or power or name != "halving_doubling"
    }
    best = min(found, key=found.__getitem__)
    limit = " to ".join(shared_links.busiest_link(where, best, collective, nbytes))
    return Prediction(found[best], 0.0, 0.0, found[best], best, "", limit)


def _most(parts: dict[str, float]) -> str:
    return max(parts, key=parts.__getitem__)
