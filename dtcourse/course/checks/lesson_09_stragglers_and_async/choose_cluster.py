"""How many of the ranks serve, and how many workers an update does not wait for."""

from __future__ import annotations

from dtcourse.course.judging import Answer, Exercise, call_each, require

CHOOSE = Exercise(
    "choose_cluster",
    lesson="09",
    title="Choose servers and backups",
    takes=("choose_cluster",),
    target="training that ends in at most 1.01 times the best choice's time, on 8 clusters",
)

# ranks, bytes of the model, bytes per second of a link, seconds of work, tail, noise
Cluster = tuple[int, float, float, float, float, float]
LINKS: tuple[Cluster, ...] = (
    (32, 1e9, 10e9, 0.5, 0.05, 4.0),
    (64, 4e9, 25e9, 0.3, 0.02, 10.0),
    (16, 2e9, 5e9, 1.0, 0.01, 2.0),
)
TAILS: tuple[Cluster, ...] = (
    (64, 1e7, 50e9, 0.2, 0.5, 2.0),
    (128, 1e7, 50e9, 1.0, 0.3, 8.0),
)
BOTH: tuple[Cluster, ...] = (
    (64, 1e9, 25e9, 0.5, 0.3, 16.0),
    (48, 5e8, 10e9, 0.2, 0.4, 100.0),
    (24, 2e9, 25e9, 0.8, 0.2, 6.0),
)


def seconds(cluster: Cluster, servers: int, backups: int) -> float:
    """Time to the target for so many servers and backups, in units of the updates that endless workers would need."""
    ranks, nbytes, link, work, tail, noise = cluster
    workers = ranks - servers
    slowest = sum(1 / i for i in range(backups + 1, workers + 1))
    # What the lesson measures in section 5: a worker's link carries its gradient, then a server's all its answers.
    exchange = nbytes / link * (1 + workers / servers)
    step = work * (1 + tail * slowest) + exchange
    return step * (1 + noise / (workers - backups))


def best(cluster: Cluster) -> tuple[float, int, int]:
    """The shortest time, and its choice."""
    n = cluster[0]
    tried = [(s, b) for s in range(1, n) for b in range(n - s)]
    return min((seconds(cluster, s, b), s, b) for s, b in tried)


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    for cluster, got in zip(clusters, call_each(answer, clusters), strict=True):
        ranks, nbytes, link, work, tail, noise = cluster
        where = (
            f"{ranks} ranks, {nbytes:g} bytes, links of {link:g} bytes/s, {work:g} s of work with a tail of {tail:g}, "
            f"noise {noise:g}"
        )
        right = isinstance(got, (list, tuple)) and len(got) == 2
        right = right and all(type(one) is int for one in got)
        require(right, f"{where}: a choice is two whole numbers, (servers, backups); got {got!r}.")
        servers, backups = got
        require(
            1 <= servers < ranks and 0 <= backups < ranks - servers,
            f"{where}: {servers} servers and {backups} backups leave no gradient to wait for, or there is no server.",
        )
        taken, (least, *_) = seconds(cluster, servers, backups), best(cluster)
        require(
            taken <= 1.01 * least,
            f"{where}: {servers} servers and {backups} backups take {taken / least:.3f} times as long as the best "
            f"choice. {hint}",
        )


@CHOOSE.check("where links decide", points=3)
def check_links(answer: Answer) -> None:
    """Large models, little chance."""
    _require(
        answer,
        LINKS,
        "Which part of an exchange gets shorter with one more server, and which does not? Section 5 of the lesson has "
        "measured it. And what does one more server cost?",
    )


@CHOOSE.check("where the tail decides", points=3)
def check_tails(answer: Answer) -> None:
    """Small models, long delays."""
    _require(
        answer,
        TAILS,
        "What does one more backup take off a step, and how many more updates does one gradient fewer need?",
    )


@CHOOSE.check("where both do", points=2)
def check_both(answer: Answer) -> None:
    """A server is a worker less."""
    _require(answer, BOTH, "Have you compared all pairs, with the updates that each needs?")
