"""How many ranks, how large a micro-batch and how large a bucket."""

from __future__ import annotations

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_step",
    lesson="06",
    title="Choose",
    takes=("choose_step",),
    target="a step in at most 1.01 times the best one's time, on 8 clusters",
)

# samples, most ranks, what fits of them, layers, seconds: per launch, per sample, latency, a layer's bytes
Cluster = tuple[int, int, int, int, float, float, float, float]
COMPUTING: tuple[Cluster, ...] = (
    (256, 8, 32, 12, 20e-6, 1e-3, 10e-6, 2e-3),
    (512, 16, 64, 24, 50e-6, 0.5e-3, 20e-6, 5e-3),
)
NETWORK: tuple[Cluster, ...] = (
    (64, 32, 64, 12, 20e-6, 0.1e-3, 200e-6, 2e-3),
    (32, 16, 32, 24, 50e-6, 0.2e-3, 50e-6, 8e-3),
    (48, 24, 48, 8, 10e-6, 0.5e-3, 1e-3, 1e-3),
)
MEMORY: tuple[Cluster, ...] = (
    (128, 8, 3, 12, 100e-6, 0.3e-3, 30e-6, 3e-3),
    (240, 12, 7, 24, 200e-6, 0.1e-3, 50e-6, 1e-3),
    (96, 32, 2, 12, 50e-6, 0.4e-3, 100e-6, 6e-3),
)
Choice = tuple[int, int, int]


def seconds(cluster: Cluster, choice: Choice) -> float:
    """Of a step, as the exercise counts it."""
    samples, _, _, layers, launch, sample, latency, nbytes = cluster
    ranks, micro, bucket = choice
    forward = launch + micro * sample  # of a layer
    backward, end = 2 * forward, 0.0
    for last in range(bucket, layers + 1, bucket):
        send = 2 * (ranks - 1) * (latency + bucket * nbytes / ranks)
        end = max(end, last * backward) + send
    before = samples // (ranks * micro) - 1  # micro-batches that send nothing
    return before * layers * (forward + backward) + layers * forward + end


def choices(cluster: Cluster) -> list[Choice]:
    """All that is allowed."""
    samples, most, fits, layers, *_ = cluster
    return [
        (ranks, micro, bucket)
        for ranks in range(1, most + 1)
        if samples % ranks == 0
        for micro in range(1, fits + 1)
        if samples // ranks % micro == 0
        for bucket in range(1, layers + 1)
        if layers % bucket == 0
    ]


def best(cluster: Cluster) -> tuple[float, Choice]:
    """The shortest time, and its choice."""
    return min((seconds(cluster, choice), choice) for choice in choices(cluster))


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    for cluster, got in zip(clusters, call_each(answer, clusters), strict=True):
        samples, most, fits, layers, launch, sample, latency, nbytes = cluster
        where = (
            f"{samples} samples, at most {most} ranks, {fits} samples fit, {layers} layers; seconds: {launch:g} per "
            f"launch, {sample:g} per sample, {latency:g} of latency, {nbytes:g} for a layer's bytes"
        )
        right = isinstance(got, (list, tuple)) and [type(n) for n in got] == [int] * 3
        require(
            right, f"{where}: a choice is (ranks, micro, bucket), such as (4, 2, 3); got {got!r}."
        )
        require(
            tuple(got) in choices(cluster),
            f"{where}: {tuple(got)!r} is not possible. What must ranks, their micro-batches and the layers of a "
            "bucket divide, and what fits?",
        )
        taken, (least, _) = seconds(cluster, tuple(got)), best(cluster)
        require_near_best(where, got, taken * 1e3, least * 1e3, "ms", hint)


@CHOOSE.check("where computing counts", points=2)
def check_computing(answer: Answer) -> None:
    """All ranks are worth their messages."""
    _require(answer, COMPUTING, "What does one rank more save, and what of its messages is hidden?")


@CHOOSE.check("where the network counts", points=3)
def check_network(answer: Answer) -> None:
    """With more ranks each has less to hide messages behind, and sends more of them."""
    _require(
        answer,
        NETWORK,
        "Would fewer ranks be faster? And what does a message cost, and what does the last bucket?",
    )


@CHOOSE.check("where memory counts", points=3)
def check_memory(answer: Answer) -> None:
    """Several micro-batches; the last one's backward alone can hide messages."""
    _require(
        answer,
        MEMORY,
        "Which micro-batch's backward hides the messages, and what does each launch cost?",
    )
