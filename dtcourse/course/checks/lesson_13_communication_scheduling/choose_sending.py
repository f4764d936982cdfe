"""Buckets and a wait in backward, or slices by priority and a wait in forward; and how large."""

from __future__ import annotations

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_sending",
    lesson="13",
    title="Choose",
    takes=("choose_sending",),
    target="a step in at most 1.01 times the best one's time, on 8 clusters",
)

# layers, forward, backward, seconds per message, seconds for a layer's bytes, most slices
Cluster = tuple[int, float, float, float, float, int]
BYTES: tuple[Cluster, ...] = (
    (12, 1e-3, 2e-3, 20e-6, 3e-3, 8),
    (24, 2e-3, 4e-3, 50e-6, 5e-3, 8),
    (8, 4e-3, 8e-3, 100e-6, 20e-3, 16),
)
MESSAGES: tuple[Cluster, ...] = (
    (24, 0.1e-3, 0.2e-3, 0.5e-3, 0.02e-3, 8),
    (12, 1e-3, 2e-3, 3e-3, 0.1e-3, 8),
)
BETWEEN: tuple[Cluster, ...] = (
    (24, 0.5e-3, 1e-3, 0.4e-3, 1e-3, 8),
    (12, 1e-3, 2e-3, 0.5e-3, 2.5e-3, 12),
    (12, 2e-3, 4e-3, 0.2e-3, 5.5e-3, 12),
)


def seconds(cluster: Cluster, wait_in: str, number: int) -> float:
    """From backward's begin to the next forward's end, as the exercise counts it."""
    layers, f, b, message, nbytes, _ = cluster
    free = 0.0
    if wait_in == "backward":
        for last in range(number, layers + 1, number):
            free = max(free, last * b) + message + number * nbytes
        return free + layers * f
    left, there, now = [number] * layers, [0.0] * layers, 0.0
    while any(left):
        ready = [i for i in range(layers) if left[i] and (layers - i) * b <= free + 1e-12]
        if not ready:
            free = min((layers - i) * b for i in range(layers) if left[i])
            continue
        left[ready[0]] -= 1
        free += message + nbytes / number
        there[ready[0]] = free
    now = layers * b
    for arrived in there:
        now = max(now, arrived) + f
    return now


def choices(cluster: Cluster) -> list[tuple[str, int]]:
    """All that is allowed."""
    layers, most = cluster[0], cluster[-1]
    whole = [("backward", n) for n in range(1, layers + 1) if layers % n == 0]
    return whole + [("forward", n) for n in range(1, most + 1)]


def best(cluster: Cluster) -> tuple[float, str, int]:
    """The shortest time, and its choice."""
    return min((seconds(cluster, *choice), *choice) for choice in choices(cluster))


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    for cluster, got in zip(clusters, call_each(answer, clusters), strict=True):
        layers, f, b, message, nbytes, most = cluster
        where = (
            f"{layers} layers, forward {f:g} s, backward {b:g} s, {message:g} s per message, {nbytes:g} s for a "
            f"layer's bytes, at most {most} slices"
        )
        right = isinstance(got, (list, tuple)) and len(got) == 2
        right = right and got[0] in ("backward", "forward") and type(got[1]) is int
        require(right, f"{where}: a choice is (wait_in, n), such as ('forward', 2); got {got!r}.")
        require(
            tuple(got) in choices(cluster),
            f"{where}: {tuple(got)!r} is not possible. Buckets hold a number of layers that divides {layers}; there "
            f"are 1 to {most} slices.",
        )
        taken, (least, *_) = seconds(cluster, *got), best(cluster)
        require_near_best(where, got, taken * 1e3, least * 1e3, "ms", hint)


@CHOOSE.check("where bytes count", points=3)
def check_bytes(answer: Answer) -> None:
    """A layer's bytes take longer than its backward."""
    _require(answer, BYTES, "What does the next forward wait for, and what could travel beside it?")


@CHOOSE.check("where messages count", points=2)
def check_messages(answer: Answer) -> None:
    """Most of the time is paid per message."""
    _require(answer, MESSAGES, "How many messages does each choice send, and what does each cost?")


@CHOOSE.check("between the two", points=3)
def check_between(answer: Answer) -> None:
    """Where both count."""
    _require(
        answer,
        BETWEEN,
        "What does one slice more cost, and whom does it let pass? Have you compared all choices of both kinds?",
    )
