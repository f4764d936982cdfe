"""One step or two for an all-to-all, and how many chunks overlap with computing."""

from __future__ import annotations

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_exchange",
    lesson="21b",
    title="Choose",
    takes=("choose_exchange",),
    target="a layer in at most 1.01 times the best one's time, on 8 clusters",
)

# nbytes, compute, overhead, nodes, g, near, latency, inside, between, most
Cluster = tuple[float, float, float, int, int, float, float, float, float, int]
H100 = (2e-6, 10e-6, 450e9, 50e9)
LONG: tuple[Cluster, ...] = (
    (256e6, 20e-3, 20e-6, 2, 8, *H100, 16),
    (64e6, 4e-3, 20e-6, 4, 4, *H100, 8),
    (512e6, 8e-3, 100e-6, 2, 4, *H100, 16),
)
SHORT: tuple[Cluster, ...] = (
    (2e6, 100e-6, 20e-6, 16, 8, *H100, 8),
    (1e6, 1e-3, 10e-6, 8, 8, *H100, 8),
)
BETWEEN: tuple[Cluster, ...] = (
    (32e6, 2e-3, 50e-6, 8, 8, *H100, 16),
    (16e6, 1e-3, 300e-6, 2, 8, 2e-6, 10e-6, 20e9, 50e9, 16),
    (128e6, 6e-3, 20e-6, 32, 8, *H100, 12),
)


def seconds(cluster: Cluster, way: str, n: int, *, apart: bool = False) -> float:
    """When a choice's last combine is done, as the exercise counts it.

    apart: combines have a network of their own, a mistake
    """
    nbytes, compute, overhead, nodes, g, near, latency, inside, between, _ = cluster
    p, b, c = nodes * g, nbytes / n, compute / n + overhead
    if way == "flat":
        t = (p - g) * (latency + b / p / between)
    else:
        t = (g - 1) * (near + b / g / inside) + (nodes - 1) * (latency + b / nodes / between)
    order = [("dispatch", 0)]
    for i in range(1, n):
        order += [("dispatch", i), ("combine", i - 1)]
    free, ready = {"dispatch": 0.0, "combine": 0.0}, [0.0] * n
    for what, i in [*order, ("combine", n - 1)]:
        now = free[what] if apart else max(free.values())
        free[what] = t + (now if what == "dispatch" else max(now, ready[i]))
        if what == "dispatch":
            ready[i] = max(free[what], ready[i - 1] if i else 0.0) + c
    return free["combine"]


def best(cluster: Cluster, *, apart: bool = False) -> tuple[float, str, int]:
    """The shortest time, and its choice. apart: see seconds."""
    tried = [(way, n) for way in ("flat", "hierarchical") for n in range(1, cluster[-1] + 1)]
    return min((seconds(cluster, way, n, apart=apart), way, n) for way, n in tried)


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    for cluster, got in zip(clusters, call_each(answer, clusters), strict=True):
        nbytes, compute, overhead, nodes, g, near, latency, inside, between, most = cluster
        where = (
            f"{nbytes:g} bytes per rank, {nodes} nodes of {g}, {compute:g} "
            f"s of computing, {overhead:g} s more per chunk, latencies {near:g} and {latency:g} s, {inside:g} and "
            f"{between:g} bytes/s"
        )
        right = isinstance(got, (list, tuple)) and len(got) == 2
        right = right and got[0] in ("flat", "hierarchical") and type(got[1]) is int
        require(right, f"{where}: a choice is (way, n), such as ('flat', 2); got {got!r}.")
        way, n = got
        require(1 <= n <= most, f"{where}: 1 to {most} chunks are possible; got {n}.")
        taken, (least, *_) = seconds(cluster, way, n), best(cluster)
        mistake = hint
        if (way, n) == best(cluster, apart=True)[1:]:
            mistake = (
                "With one network for dispatches and another one for combines it is the best. Which of them wait for "
                "each other on one?"
            )
        require_near_best(where, (way, n), taken * 1e3, least * 1e3, "ms", mistake)


@CHOOSE.check("with much to send", points=3)
def check_long(answer: Answer) -> None:
    """Where bytes count."""
    _require(
        answer,
        LONG,
        "Both ways send the same bytes to other nodes. What does the second step cost, and what can a chunk's "
        "computing hide?",
    )


@CHOOSE.check("with short messages", points=2)
def check_short(answer: Answer) -> None:
    """Where messages count."""
    _require(
        answer,
        SHORT,
        "How many messages to other nodes does each way send per chunk, and what does each cost besides its bytes?",
    )


@CHOOSE.check("between the two", points=3)
def check_between(answer: Answer) -> None:
    """Where everything counts."""
    _require(
        answer,
        BETWEEN,
        "What does one chunk more cost, in messages and in overhead, and what does it hide? Have you compared all "
        "choices?",
    )
