"""NCCL's own model of a collective, from which it chooses: an algorithm's latency, and its share of the bandwidth.

    seconds = latency + bytes / (bandwidth * share)

    LL       every 8 bytes hold 4 of data and 4 of a flag, so nobody waits for a fence: short, at half the bandwidth
    LL128    120 of 128 bytes are data; needs NVLink, which keeps the order of 128 bytes
    Simple   chunks of data, and a fence after each: the longest step, all of the bandwidth

    ring     p - 1 steps (all-reduce: twice), of which those that leave a node are dearer
    tree     up and down: a chain of the node's GPUs, then log2 of the nodes; all-reduce only
    switch   NVSwitch adds (NCCL's word: NVLS), inside one node; all-reduce only
    direct   each message goes straight to its GPU, all at once: all-to-all and send. tuning.cc has no entry for these:
             one step of the ring's latency

Source: src/graph/tuning.cc, whose constants are in published/collectives_cost_models.json ("nccl_tuner") and
nccl_model.json. A tree's correction is given there at powers of two; between them it is interpolated here, so that more
bytes never take less time. Left out: limits per channel, PAT, CollNet, NVLSTree, several messages in one launch.
"""

from __future__ import annotations

import math

from dtcourse.simulator.hardware import published

PROTOCOLS = ("LL", "LL128", "Simple")

# Which algorithms NCCL has for a collective, and which protocols these have.
ALGORITHMS = {
    "all_reduce": ("ring", "tree", "switch"),
    "reduce_scatter": ("ring",),
    "all_gather": ("ring",),
    "broadcast": ("ring",),
    "all_to_all": ("direct",),
    "send": ("direct",),
}
SPOKEN = {
    "ring": PROTOCOLS,
    "tree": PROTOCOLS,
    "switch": ("Simple",),
    "direct": ("LL", "Simple"),
}


def steps(collective: str, ranks: int) -> int:
    """How many messages of a ring follow each other."""
    return (2 if collective == "all_reduce" else 1) * (ranks - 1)


def latency(
    algorithm: str, protocol: str, collective: str, nbytes: float, nodes: int, gpus: int
) -> float:
    """Seconds of a collective that are not for its bytes. gpus: per node."""
    tuner, model = published("collectives_cost_models")["nccl_tuner"], published("nccl_model")
    which, hops = PROTOCOLS.index(protocol), tuner["hw_latency_us"]
    base = tuner["base_latency_us_LL_LL128_Simple"]
    if algorithm == "switch":
        return 1e-6 * hops["NVLINK"]["nvls_simple"]
    if algorithm == "tree":
        chain = (gpus - 1) * hops["NVLINK"]["tree"][which]
        across = int(math.log2(nodes)) * hops["NET"]["tree"][which]
        return 1e-6 * (base["tree"][which] + 2 * (chain + across))
    near = hops["NVLINK"]["ring"][which]
    # One GPU per node: no step inside hides what the network takes, and NCCL counts the tree's latency.
    far = hops["NET"]["tree" if gpus == 1 else "ring"][which]
    if algorithm == "direct":
        return 1e-6 * (base["ring"][which] + (far if nodes > 1 else near))
    if nodes > 1:
        near = max(near, model["net_overhead_us"][which])
    crossing = steps(collective, nodes)
    found = base["ring"][which] + (steps(collective, nodes * gpus) - crossing) * near
    found += crossing * far
    # so many bytes per channel and rank; with a channel per GPU, as many as there are cards
    large = nbytes >= model["ring_plateau_from_bytes"] * nodes * gpus * gpus
    if collective == "all_reduce" and protocol == "Simple" and nodes > 1 and large:
        found *= model["ring_plateau"]
    return 1e-6 * found


def bandwidth(
    algorithm: str, protocol: str, wire: float, nbytes: float, nodes: int, gpu: str
) -> float:
    """Bytes per second that are left of a wire's. gpu: its name in nccl_model.json."""
    model = published("nccl_model")
    which = PROTOCOLS.index(protocol)
    most = 1e9 * model["ll_max_GBps"][gpu][min(nodes, 3) - 1] if protocol == "LL" else math.inf
    if algorithm == "switch":
        return wire * model["nvls_efficiency"][gpu]
    if algorithm != "tree":
        return min(wire * model["ring_share"][which], most)
    share = model["tree_share"]
    if protocol == "LL":
        share *= model["tree_share_LL"]
    if protocol == "LL128":
        share *= model["tree_share_LL128_one_node" if nodes == 1 else "tree_share_LL128_more_nodes"]
    return min(wire * share, most) * _correction(protocol, nbytes)


def _correction(protocol: str, nbytes: float) -> float:
    """What is left of a tree's bandwidth at this size; beyond the table all."""
    factors = [*published("nccl_model")["tree_correction"][protocol], 1.0]
    place = min(math.log2(max(nbytes, 64) / 64), len(factors) - 1)
    below = min(int(place), len(factors) - 2)
    part = place - below
    return (1 - part) * factors[below] + part * factors[below + 1]
