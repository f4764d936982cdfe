"""How many ranks exchange heads, and how many form a ring."""

from __future__ import annotations

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_degrees",
    lesson="20",
    title="Choose",
    takes=("choose_degrees",),
    target="a forward of at most 1.01 times the best, on 8 clusters",
)

# tokens, heads, kv_heads, dim, p, node, speed, inside, between, latency
Cluster = tuple[int, int, int, int, int, int, float, float, float, float]
H100 = (4e14, 4.5e11, 5e10, 1e-5)
ONE_NODE: tuple[Cluster, ...] = (
    (4096, 64, 64, 64, 8, 8, 4e14, 2e11, 5e10, 1e-5),
    (8192, 32, 4, 128, 8, 8, 4e14, 6.3e10, 5e10, 1e-5),
)
NODES: tuple[Cluster, ...] = (
    (131_072, 64, 8, 128, 16, 8, *H100),
    (32_768, 64, 64, 128, 32, 8, *H100),
    (16_384, 64, 64, 128, 16, 4, 4e14, 4.5e11, 2.5e10, 1e-3),
)
FEW_HEADS: tuple[Cluster, ...] = (
    (16_384, 20, 1, 128, 16, 8, 4e14, 4.5e11, 1e10, 1e-6),
    (4096, 20, 1, 64, 16, 8, 4e14, 4.5e11, 2.5e10, 1e-6),
    (65_536, 12, 4, 64, 16, 8, *H100),
)


def seconds(cluster: Cluster, u: int, r: int) -> float | None:
    """A choice's forward, as the exercise counts it; None where it is no choice."""
    tokens, heads, kv_heads, dim, p, node, speed, inside, between, latency = cluster
    if u * r != p or heads % u or (kv_heads % u and u % kv_heads):
        return None
    kv, length = max(kv_heads, u), tokens / r
    nbytes = (u - 1) / u * 4 * dim * (heads + kv) * tokens / p
    exchange = 4 * (u - 1) * latency + nbytes / (between if node % u else inside)
    block = 4 * (heads / u) * length**2 * dim / speed
    transfer = latency + 4 * (kv / u) * length * dim / (inside if p <= node else between)
    return exchange + (r - 1) * max(block, transfer) + block


def best(cluster: Cluster) -> tuple[float, int, int]:
    """The shortest forward, and its degrees."""
    p = cluster[4]
    tried = [(seconds(cluster, u, p // u), u, p // u) for u in range(1, p + 1) if p % u == 0]
    return min((s, u, r) for s, u, r in tried if s is not None)


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    for cluster, got in zip(clusters, call_each(answer, clusters), strict=True):
        tokens, heads, kv_heads, dim, p, node, speed, inside, between, latency = cluster
        where = (
            f"{tokens:,} tokens, {heads} heads of {dim}, {kv_heads} of keys and values, {p} ranks in nodes of "
            f"{node}, {speed:g} FLOP/s, {inside:g} and {between:g} bytes/s, latency {latency:g} s"
        )
        right = isinstance(got, (list, tuple)) and len(got) == 2
        right = right and all(type(n) is int and n > 0 for n in got)
        require(right, f"{where}: a choice is (u, r), such as (4, 2); got {got!r}.")
        u, r = got
        require(
            u * r == p,
            f"{where}: {u} times {r} is not {p}. Every rank is in one exchange and in one ring.",
        )
        taken = seconds(cluster, u, r)
        require(
            taken is not None,
            f"{where}: the heads do not go into u = {u} parts. Which u divide the query heads, and divide the "
            "key-value heads or are a multiple of them?",
        )
        least = best(cluster)[0]
        assert taken is not None
        require_near_best(where, (u, r), taken * 1e3, least * 1e3, "ms", hint)


@CHOOSE.check("in one node", points=2, needs=("check_heads",))
def check_one_node(answer: Answer) -> None:
    """A fast link and a slower one."""
    _require(
        answer,
        ONE_NODE,
        "A ring's transfers are hidden where a block takes longer, and the exchange never is. Which of the two "
        "counts here?",
    )


@CHOOSE.check("on several nodes", points=3, needs=("check_heads",))
def check_nodes(answer: Answer) -> None:
    """Where links are unequal, and where messages are slow to start."""
    _require(
        answer,
        NODES,
        "Which of the two goes over which link, and what does each message cost besides its bytes?",
    )


@CHOOSE.check("with few heads", points=3)
def check_heads(answer: Answer) -> None:
    """Where not every u is possible, or keys and values are sent several times."""
    _require(
        answer,
        FEW_HEADS,
        "Keys and values that are sent several times are bytes as well, in the exchange and on the ring. Have you "
        "compared all choices?",
    )
