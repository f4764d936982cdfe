"""Ranks on the GPUs of a machine: the shortest communication of a step, measured."""

from __future__ import annotations

import itertools
import random
from functools import cache
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require, require_near_best
from dtcourse.emulation import EmulatedNetwork

PLACE = Exercise(
    "place_ranks",
    lesson="05b",
    title="Place the ranks",
    takes=("place_ranks",),
    target="a step's communication, measured, in at most 1.01 times the best placement's, for 5 machines and jobs of 8 "
    "GPUs and one of 16, each placed within 20 seconds",
)

LATENCY, PATIENCE = 2e-6, 20.0
# GPUs in the order in which the machine counts them, for each machine.
SHUFFLED = (5, 2, 7, 0, 3, 6, 1, 4)
# A machine of many cables, GB/s: placements whose links have the largest sum take 1.5 times the best's time and more.
MIXED = (
    (0, 22, 91, 83, 63, 76, 61, 37),
    (22, 0, 68, 65, 51, 22, 15, 17),
    (91, 68, 0, 25, 70, 71, 49, 84),
    (83, 65, 25, 0, 99, 29, 72, 51),
    (63, 51, 70, 99, 0, 15, 47, 62),
    (76, 22, 71, 29, 15, 0, 23, 31),
    (61, 15, 49, 72, 47, 23, 0, 19),
    (37, 17, 84, 51, 62, 31, 19, 0),
)
# GB/s of the links of the machine of 16 GPUs, and how often each is drawn. Of 16! orders nobody tries all. A search
# that looks at the slowest links alone stopped at 1.3 times the best's time or more, in each of 400 starts; one that
# counts the other links a little, too, found the best from one start in 12.
SIXTEEN = {64.0: 12, 32.0: 18, 16.0: 10, 12.0: 10, 8.0: 10}
# Bytes that each pair and each ring all-reduces.
Sizes = tuple[int, int]
HEAVY_PAIRS: Sizes = (4_000_000, 1_000_000)
HEAVY_RINGS: Sizes = (400_000, 4_000_000)


def _placed(place_ranks: Any, given: list[Any]) -> Any:
    return [[int(gpu) for gpu in place_ranks(*one)] for one in given]


def _step(place_ranks: Any, pair_bytes: int, ring_bytes: int) -> float:
    """In a rank: the seconds of both all-reduces. The placement is in the network already."""
    import torch
    import torch.distributed as dist

    from dtcourse import emulation

    rank, ranks = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([i, i + 1]) for i in range(0, ranks, 2)]
    rings = [dist.new_group(list(range(side, ranks, 2))) for side in (0, 1)]
    start = emulation.now()
    dist.all_reduce(torch.ones(pair_bytes // 4), group=pairs[rank // 2])
    dist.all_reduce(torch.ones(ring_bytes // 4), group=rings[rank % 2])
    return emulation.now() - start


@cache
def machine(name: str) -> tuple[tuple[float, ...], ...]:
    """GB/s from each GPU to each other one."""
    import networkx

    from dtcourse.simulator import nodes, topology
    from dtcourse.simulator.hardware import links

    if name == "no two cables alike":
        return tuple(tuple(map(float, row)) for row in MIXED)
    if name == "sixteen GPUs":
        draw, rates = random.Random(12), [[0.0] * 16 for _ in range(16)]
        for i, j in itertools.combinations(range(16), 2):
            (rates[i][j],) = (rates[j][i],) = draw.choices(list(SIXTEEN), list(SIXTEEN.values()))
        return tuple(map(tuple, rates))
    if name == "two boards":  # four GPUs each, 64 GB/s between any two of a board, one tenth across
        graph = networkx.complete_graph(8)
        for a, b in graph.edges:
            graph.edges[a, b]["bandwidth"] = 64e9 if a // 4 == b // 4 else 6.4e9
        graph = networkx.relabel_nodes(graph, {i: f"GPU {i}" for i in range(8)})
        networkx.set_node_attributes(graph, "host", "kind")
        net = topology.Topology(name, graph)
    else:
        net = nodes.nvlink_mesh(links()["NVLink2 V100"].bandwidth)
        if name == "mesh, hurt":
            net = nodes.broken(net, "GPU 0", "GPU 4", left=2.5e9)
    network = nodes.emulated(net, [f"GPU {i}" for i in SHUFFLED], LATENCY)
    return tuple(
        tuple(0.0 if i == j else network.link(i, j).bandwidth / 1e9 for j in range(8))
        for i in range(8)
    )


def seconds(rates: Any, sizes: Sizes, gpus: Any) -> float:
    """Of a step: the slowest pair of all, then the slower ring; latencies left out."""
    pair_bytes, ring_bytes = sizes
    pairs, rings = _links(gpus)
    pair = max(pair_bytes / rates[a][b] for a, b in pairs)
    narrow = min(rates[a][b] for a, b in rings)
    around = len(gpus) // 2
    return (pair + 2 * (around - 1) / around * ring_bytes / narrow) / 1e9


def _links(gpus: Any) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Those of the pairs, and those of both rings."""
    p = len(gpus)
    pairs = [(gpus[i], gpus[i + 1]) for i in range(0, p, 2)]
    return pairs, [(gpus[i], gpus[(i + 2) % p]) for i in range(p)]


@cache
def best(name: str, sizes: Sizes) -> tuple[int, ...]:
    """Of 8 GPUs by trying them all; of 16 by a search, whose find an exact one confirms (tests/course/mutants)."""
    rates = machine(name)
    if len(rates) > 8:
        return searched(rates, sizes)
    return min(
        itertools.permutations(range(len(rates))), key=lambda gpus: seconds(rates, sizes, gpus)
    )


def searched(rates: Any, sizes: Sizes, starts: int = 150, seed: int = 0) -> tuple[int, ...]:
    """Swaps that help, from many starts. The mean link counts a little, too: so a swap is seen to help that mends one
    of several slowest links.
    """
    p = len(rates)

    def cost(gpus: list[int]) -> float:
        pairs, rings = _links(gpus)
        mean = sum(sizes[0] / rates[a][b] for a, b in pairs)
        mean += sum(sizes[1] / rates[a][b] for a, b in rings)
        return seconds(rates, sizes, gpus) + 1e-12 * mean

    draw, found = random.Random(seed), []
    for _ in range(starts):
        gpus = draw.sample(range(p), p)
        least, better = cost(gpus), True
        while better:
            better = False
            for i, j in itertools.combinations(range(p), 2):
                gpus[i], gpus[j] = gpus[j], gpus[i]
                swapped = cost(gpus)
                if swapped < least * (1 - 1e-9):
                    least, better = swapped, True
                else:
                    gpus[i], gpus[j] = gpus[j], gpus[i]
        found.append((seconds(rates, sizes, gpus), tuple(gpus)))
    return min(found)[1]


def measured(answer: Answer, name: str, sizes: Sizes, gpus: Any) -> float:
    """Milliseconds of a step of ranks that are placed so."""
    rates = machine(name)
    cables = {
        (i, j): EmulatedNetwork(LATENCY, 1e9 * rates[gpus[i]][gpus[j]])
        for i, j in itertools.permutations(range(len(gpus)), 2)
    }
    network = EmulatedNetwork(LATENCY, cables=cables)
    options = {"backend": "ring", "network": network, "clock": "virtual"}
    run = answer.run(_step, len(gpus), *sizes, **options)
    return 1e3 * max(run[rank] for rank in range(len(gpus)))


def _require(answer: Answer, name: str, sizes: Sizes, hint: str) -> None:
    rates = [list(row) for row in machine(name)]
    (got,) = answer.call(_placed, [(rates, *sizes)], timeout=PATIENCE)
    where = f"Machine {name!r}, {sizes[0] / 1e6:g} MB per pair and {sizes[1] / 1e6:g} MB per ring"
    require(
        sorted(got) == list(range(len(rates))),
        f"{where}: a placement names each of the {len(rates)} GPUs once, that of rank 0 first; got {got!r}.",
    )
    least_gpus = best(name, sizes)
    milliseconds = {one: measured(answer, name, sizes, one) for one in {tuple(got), least_gpus}}
    taken, least = milliseconds[tuple(got)], milliseconds[least_gpus]
    good = 1.0001 * seconds(rates, sizes, least_gpus)
    if seconds(rates, sizes, got) <= good:
        hint = "By its slowest links it is as good as the best. Which other links do the messages of a ring pass?"
    elif seconds(rates, sizes, [got.index(gpu) for gpu in range(len(got))]) <= good:
        hint = "Read the other way round it is the best: is that the GPU of each rank, or the rank of each GPU?"
    require_near_best(where, got, taken, least, "ms", hint)


@PLACE.check("pairs that say much", points=2)
def check_pairs(answer: Answer) -> None:
    """A whole machine."""
    _require(
        answer,
        "mesh",
        HEAVY_PAIRS,
        "Which two GPUs does each pair sit on, and which links are left for the two rings?",
    )


@PLACE.check("rings that say much", points=2)
def check_rings(answer: Answer) -> None:
    """The same machine, another job."""
    _require(
        answer,
        "mesh",
        HEAVY_RINGS,
        "What is the narrowest link of each ring, its last one back to its first included?",
    )


@PLACE.check("two boards, a broken cable, and no two cables alike", points=3)
def check_others(answer: Answer) -> None:
    """Where one link is much slower than others."""
    for name in ("two boards", "mesh, hurt"):
        _require(
            answer,
            name,
            HEAVY_PAIRS,
            "Does anybody use the slowest links who need not? `rates` says which they are.",
        )
    _require(
        answer,
        "no two cables alike",
        HEAVY_RINGS,
        "What do fast links win where one slow link is in the ring: does their sum count, or the slowest, for which "
        "all wait?",
    )


@PLACE.check("sixteen GPUs", points=3)
def check_sixteen(answer: Answer) -> None:
    """More orders than anybody can try."""
    _require(
        answer,
        "sixteen GPUs",
        HEAVY_PAIRS,
        "What can a search change, step by step, and how does it see that one of several slowest links was mended?",
    )
