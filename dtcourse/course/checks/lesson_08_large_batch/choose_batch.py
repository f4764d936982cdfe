"""How many ranks, how large a micro-batch and how many of them: the least time to a loss, within a budget."""

from __future__ import annotations

from functools import cache

from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_batch",
    lesson="08",
    title="Choose the batch",
    takes=("choose_batch",),
    target="at most 1.01 times the shortest time to the loss, within the budget, on 8 clusters",
)

MOST_ACCUMULATION = 32
# noise scale, least steps, most ranks, samples that fit, rank-seconds, seconds: per launch, per
# sample, latency, a gradient's bytes
Cluster = tuple[float, int, int, int, float, float, float, float, float]
NOISE: tuple[Cluster, ...] = (
    (4000.0, 1000, 32, 8, 1e9, 2e-3, 5e-3, 20e-6, 4e-3),
    (900.0, 5000, 16, 16, 1e9, 1e-3, 2e-3, 50e-6, 2e-3),
)
NETWORK: tuple[Cluster, ...] = (
    (60.0, 2000, 48, 16, 1e9, 1e-3, 2e-3, 1e-3, 10e-3),
    (400.0, 1000, 64, 4, 1e9, 0.5e-3, 1e-3, 2e-3, 20e-3),
    (20.0, 3000, 24, 8, 1e9, 4e-3, 1e-3, 3e-3, 5e-3),
)
BUDGET: tuple[Cluster, ...] = (
    (2000.0, 1000, 32, 8, 14_000.0, 2e-3, 5e-3, 20e-6, 4e-3),
    (100.0, 4000, 40, 16, 3_000.0, 1e-3, 2e-3, 100e-6, 6e-3),
    (500.0, 2000, 24, 4, 5_000.0, 3e-3, 3e-3, 50e-6, 10e-3),
)
Choice = tuple[int, int, int]


def seconds(cluster: Cluster, choice: Choice) -> float:
    """To the loss, as the exercise counts it."""
    noise, least, _, _, _, launch, sample, latency, nbytes = cluster
    ranks, micro, accumulation = choice
    steps = least * (1 + noise / (ranks * micro * accumulation))
    reduce = 2 * (ranks - 1) * (latency + nbytes / ranks)
    return steps * (accumulation * (launch + micro * sample) + reduce)


@cache
def best(cluster: Cluster) -> tuple[float, Choice]:
    """The shortest time within the budget, and its choice."""
    _, _, most, fits, budget, *_ = cluster
    return min(
        (taken, choice)
        for ranks in range(1, most + 1)
        for micro in range(1, fits + 1)
        for accumulation in range(1, MOST_ACCUMULATION + 1)
        if (taken := seconds(cluster, choice := (ranks, micro, accumulation))) * ranks <= budget
    )


def _require(answer: Answer, clusters: tuple[Cluster, ...], hint: str) -> None:
    for cluster, got in zip(clusters, call_each(answer, clusters, timeout=60.0), strict=True):
        noise, least_steps, most, fits, budget, launch, sample, latency, nbytes = cluster
        where = (
            f"Noise scale {noise:g}, {least_steps:,} steps at least, at most {most} ranks, {fits} samples fit, "
            f"{budget:,.0f} rank-seconds; seconds: {launch:g} per launch, {sample:g} per sample, {latency:g} of "
            f"latency, {nbytes:g} for a gradient's bytes"
        )
        right = isinstance(got, (list, tuple)) and [type(n) for n in got] == [int] * 3
        require(
            right,
            f"{where}: a choice is (ranks, micro, accumulation), such as (4, 2, 3); got {got!r}.",
        )
        ranks, micro, accumulation = got
        require(
            1 <= ranks <= most and 1 <= micro <= fits and 1 <= accumulation <= MOST_ACCUMULATION,
            f"{where}: {tuple(got)!r} is not possible. How many ranks are there, what fits, and how often may a "
            "rank accumulate?",
        )
        taken, (shortest, _) = seconds(cluster, (ranks, micro, accumulation)), best(cluster)
        require(
            taken * ranks <= budget,
            f"{where}: {tuple(got)!r} takes {taken:,.0f} s on {ranks} ranks, {taken * ranks:,.0f} rank-seconds: "
            "more than the budget. What does a larger batch cost in samples?",
        )
        require_near_best(where, got, taken, shortest, "s", hint)


@CHOOSE.check("where noise limits", points=2)
def check_noise(answer: Answer) -> None:
    """The batch is far below the noise scale: every rank is worth its messages."""
    _require(
        answer, NOISE, "How many steps does a larger batch save there, and what does a step cost?"
    )


@CHOOSE.check("where the network limits", points=3)
def check_network(answer: Answer) -> None:
    """Few ranks that accumulate beat many that wait for messages."""
    _require(
        answer,
        NETWORK,
        "What does the all-reduce of so many ranks cost, and how often per sample does it come?",
    )


@CHOOSE.check("where the budget limits", points=3)
def check_budget(answer: Answer) -> None:
    """Beyond the noise scale a rank more costs more than it saves."""
    _require(answer, BUDGET, "Of the choices that the budget allows, which takes the least time?")
