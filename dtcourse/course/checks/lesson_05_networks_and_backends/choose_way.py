"""Which interface and which algorithm, for what a job sends: run on the emulated clock, on clusters drawn anew."""

from __future__ import annotations

from typing import Any

from dtcourse.course.checks.lesson_05_networks_and_backends.drawn_clusters import (
    ALGORITHMS,
    RANKS,
    Calls,
    Choice,
    Cluster,
    drawn,
)
from dtcourse.course.judging import Answer, Exercise, call_each, require, require_near_best

CHOOSE = Exercise(
    "choose_way",
    lesson="05",
    title="Choose the interface and the algorithm",
    takes=("choose_way",),
    target="on 8 clusters of 4 ranks, drawn anew, run on the emulated clock, a step's all-reduces take at most 1.02 "
    "times as long as with the best choice",
    forbidden=("dtcourse.simulator", "dtcourse.emulation", "dtcourse.launch", "dtcourse.course.checks"),
)  # fmt: skip

NEAR = 1.02  # times the best choice's seconds


def _step(_: Any, calls: Calls, algorithm: str) -> float:
    """In a rank: seconds of a step's all-reduces, each of which all ranks begin at one moment of the clock."""
    import importlib

    import torch

    from dtcourse import emulation

    all_reduce = importlib.import_module(f"dtcourse.collectives.{algorithm}").all_reduce
    taken = 0.0
    for at, (nbytes, times) in enumerate(calls, 1):
        emulation.sleep(at - emulation.now())
        all_reduce(torch.ones(nbytes // 4))
        taken += times * (emulation.now() - at)
    return taken


def emulated(answer: Answer, cluster: Cluster, choice: Choice) -> float:
    """Milliseconds of a step, measured."""
    name, algorithm = choice
    options = {"backend": "ring", "network": cluster.ways[name].network(), "clock": "virtual"}
    run = answer.run(_step, RANKS, cluster.calls, algorithm, **options)
    return 1e3 * max(run[rank] for rank in range(RANKS))


def _require(answer: Answer, kinds: tuple[str, str], hint: str) -> None:
    clusters = [drawn(kind) for kind in kinds]
    said = call_each(answer, [cluster.given() for cluster in clusters])
    for cluster, got in zip(clusters, said, strict=True):
        where = cluster.describe()
        require(
            isinstance(got, (list, tuple)) and len(got) == 2,
            f"{where}: a choice is an interface and an algorithm, such as ('eth0', 'ring'); got {got!r}.",
        )
        require(
            got[0] in cluster.ways and got[1] in ALGORITHMS,
            f"{where}: {tuple(got)!r} is not possible. The algorithm is one of {', '.join(ALGORITHMS)}.",
        )
        choice: Choice = (got[0], got[1])
        pair = cluster.ways[choice[0]].refuses
        require(
            pair is None,
            f"{where}: no group forms on {choice[0]}: no message from rank {pair and pair[0]} has ever come to rank "
            f"{pair and pair[1]}.",
        )
        times = {one: emulated(answer, cluster, one) for one in {choice, cluster.best()}}
        require_near_best(where, choice, times[choice], times[cluster.best()], "ms", hint, NEAR)


@CHOOSE.check("where calls are short", points=2)
def check_short(answer: Answer) -> None:
    """A message costs what it costs however short it is."""
    _require(
        answer,
        ("short", "short"),
        "How much of the time of such a message is spent on its bytes? And how many messages follow one another?",
    )


@CHOOSE.check("where calls are long", points=2)
def check_long(answer: Answer) -> None:
    """Bytes are all that counts."""
    _require(
        answer,
        ("long", "long"),
        "How long would a message of that many bytes take? And which rank sends or receives the most of them?",
    )


@CHOOSE.check("where a step has both", points=3)
def check_both(answer: Answer) -> None:
    """One interface and one algorithm for all of them."""
    _require(
        answer,
        ("many", "few"),
        "How long do all calls of one step take together, by each choice? Which of them is the larger part?",
    )


@CHOOSE.check("where cables are not alike", points=3)
def check_cables(answer: Answer) -> None:
    """Whoever looks at one pair sees nothing of it."""
    _require(
        answer,
        ("slow", "refuses"),
        "Which pair of ranks is the slowest on each interface, and who waits for it?",
    )
