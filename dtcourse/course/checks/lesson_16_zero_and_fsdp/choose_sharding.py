"""Which stage, over which ranks, and are the optimizer states offloaded?"""

from __future__ import annotations

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best
from dtcourse.plural import plural

CHOOSE = Exercise(
    "choose_sharding",
    lesson="16",
    title="Choose",
    takes=("choose_sharding",),
    target="it fits, and a step takes at most 1.01 times the best one's time, on 9 clusters",
)

# parameters, nodes, GPUs per node, bytes for states on a GPU, seconds of compute;
# bytes per second of a GPU: inside a node, by its card between nodes, to the host
Cluster = tuple[float, int, int, float, float, float, float, float]
INSIDE: tuple[Cluster, ...] = (
    (7e9, 16, 8, 40e9, 0.5, 450e9, 1.6e9, 63e9),
    (13e9, 8, 8, 60e9, 1.0, 300e9, 3e9, 31e9),
    (3e9, 4, 4, 16e9, 0.1, 60e9, 1.5e9, 12e9),
)
ACROSS: tuple[Cluster, ...] = (
    (70e9, 8, 8, 60e9, 2.0, 450e9, 20e9, 63e9),  # offload would do with less, were it one card
    (50e9, 2, 8, 60e9, 0.5, 450e9, 200e9, 31.4e9),
    (70e9, 8, 8, 60e9, 9.0, 450e9, 6.25e9, 63e9),  # hidden here
)
HOST: tuple[Cluster, ...] = (
    (70e9, 1, 8, 60e9, 8.0, 450e9, 50e9, 63e9),
    (13e9, 2, 4, 14e9, 2.0, 300e9, 2e9, 63e9),
    (13e9, 1, 8, 40e9, 0.2, 20e9, 50e9, 63e9),
)
Choice = tuple[int, str, bool]
CHOICES = [
    (stage, over, offload)
    for stage in (1, 2, 3)
    for over in ("node", "all")
    for offload in (False, True)
]


def needed(cluster: Cluster, choice: Choice) -> float:
    """Bytes of states on a GPU."""
    parameters, nodes, per_node, *_ = cluster
    stage, over, offload = choice
    ranks = per_node * (nodes if over == "all" else 1)
    each = 2 / (ranks if stage == 3 else 1) + 2 / (ranks if stage >= 2 else 1)
    return parameters * (each + (0 if offload else 12 / ranks))


def seconds(cluster: Cluster, choice: Choice) -> float:
    """Of a step, as the exercise counts it."""
    parameters, nodes, per_node, _, compute, inside, between, host = cluster
    stage, over, offload = choice
    ranks = per_node * (nodes if over == "all" else 1)
    slowest = inside
    if over == "all" and nodes > 1:  # a ring through each card
        slowest = min(inside, per_node * between)
    messages = (3 if stage == 3 else 2) * 2 * parameters * (ranks - 1) / ranks / slowest
    if over == "node":
        messages += 2 * (nodes - 1) / nodes * 2 * parameters / ranks / between
    return max(compute, messages) + (4 * parameters / ranks / host if offload else 0)


def best(cluster: Cluster) -> tuple[float, Choice]:
    """The shortest time of what fits, and its choice."""
    return min(
        (seconds(cluster, choice), choice)
        for choice in CHOICES
        if needed(cluster, choice) <= cluster[3]
    )


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    for cluster, got in zip(clusters, call_each(answer, clusters), strict=True):
        parameters, nodes, per_node, room, compute, inside, between, host = cluster
        where = (
            f"{parameters / 1e9:g} billion parameters, {plural(nodes, 'node')} of {per_node}, {room / 1e9:g} GB on "
            f"each, {compute:g} s of compute; GB/s: {inside / 1e9:g} inside, {between / 1e9:g} by a card, "
            f"{host / 1e9:g} to the host"
        )
        require(
            isinstance(got, (list, tuple)) and len(got) == 3 and tuple(got) in CHOICES,
            f"{where}: a choice is (stage, over, offload), such as (3, 'all', False); got {got!r}.",
        )
        need = needed(cluster, tuple(got))
        require(
            need <= room,
            f"{where}: {tuple(got)!r} needs {need / 1e9:.1f} GB of states on each GPU. What does each stage shard, "
            "over how many ranks, and what leaves for the host?",
        )
        taken, (least, _) = seconds(cluster, tuple(got)), best(cluster)
        require_near_best(where, got, taken, least, "s", hint)


@CHOOSE.check("where a node holds the states", points=3)
def check_inside(answer: Answer) -> None:
    """Links between nodes are slow."""
    _require(
        answer,
        INSIDE,
        "What travels between the nodes, sharded over all and sharded inside the node? Is the lowest stage that "
        "fits the fastest?",
    )


@CHOOSE.check("where all ranks must share", points=3)
def check_across(answer: Answer) -> None:
    """Stage 3 hides behind compute, or does not."""
    _require(
        answer,
        ACROSS,
        "How many passes of the parameters does a stage send, by how many cards of a node, and what hides behind "
        "compute?",
    )


@CHOOSE.check("where the host must help", points=3)
def check_host(answer: Answer) -> None:
    """Its copies are not hidden here."""
    _require(
        answer,
        HOST,
        "What do the copies to and from the host cost, and would another stage fit without them?",
    )
