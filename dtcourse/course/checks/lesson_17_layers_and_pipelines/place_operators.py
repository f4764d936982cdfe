"""Which operators of a graph go to which of two ranks: the shortest step. Really run, forward and backward, under
emulation.
"""

from __future__ import annotations

from itertools import product

from dtcourse.course.checks.lesson_17_layers_and_pipelines import operators
from dtcourse.course.checks.lesson_17_layers_and_pipelines.operators import Graph
from dtcourse.course.judging import Answer, Exercise, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

PLACE = Exercise(
    "place_operators",
    lesson="17",
    title="Operators on two ranks",
    takes=("place_operators",),
    target="a step forward and backward, measured, in at most 1.01 times the time of the best placement; at most 8 of "
    "128 placements tried",
    launches=True,
)

MOST = 8  # placements that an answer may try
FLOPS = 1e9
# Two branches from one operator to another; a long branch beside several short ones; hardly anything beside a chain.
TOWERS: Graph = (
    (32, ()),
    (96, (0,)),
    (64, (0,)),
    (32, (1,)),
    (64, (2,)),
    (32, (1, 2)),
    (64, (3, 4, 5)),
)
LONG: Graph = (
    (16, ()),
    (128, (0,)),
    (32, (0,)),
    (32, (2,)),
    (32, (3,)),
    (32, (2,)),
    (64, (1, 4, 5)),
)
CHAIN: Graph = ((32, ()), (32, (0,)), (32, (1,)), (16, (0,)), (32, (2,)), (32, (3, 4)), (32, (5,)))
# With the time of a message, in forwards of an inner width of 32; and the best placement that has the first operator
# on rank 0, which tests/course/test_place_operators.py finds by running every one.
Given = tuple[Graph, float]
FREE: dict[Given, str] = {(LONG, 0.0): "0011110"}
MESSAGES: dict[Given, str] = {(LONG, 1.0): "0011111", (TOWERS, 2.0): "0101011"}
DEAR: dict[Given, str] = {(CHAIN, 4.0): "0000000"}


def forward_seconds(inner: int) -> float:
    """Of an operator of that inner width: two products of 2 operations per number and sample."""
    return 4 * operators.SAMPLES * operators.WIDTH * inner / FLOPS


def case(graph: Graph, message: float) -> trials.Case:
    """A graph and a network, as an answer gets them."""
    seconds = message * forward_seconds(32)
    nbytes = 4 * operators.SAMPLES * operators.WIDTH
    network = EmulatedNetwork(bandwidth=nbytes / seconds) if seconds else EmulatedNetwork()
    told = (
        [forward_seconds(inner) for inner, _ in graph],
        [list(needs) for _, needs in graph],
        seconds,
    )
    choices: list[trials.Choice] = list(product((0, 1), repeat=len(graph)))
    emulated = {"devices": EmulatedDevice(FLOPS), "network": network}
    return trials.Case(operators.step, 2, choices, (graph,), told, MOST, emulated)


PRACTICE = case(TOWERS, 0.5)


def choice_of(placed: str) -> trials.Choice:
    """A placement as the tables write it: each operator's rank."""
    return tuple(map(int, placed))


def _require(answer: Answer, cases: dict[Given, str], hint: str) -> None:
    for (graph, message), best in cases.items():
        where = (
            f"{len(graph)} operators, a message as long as {message:g} forwards of the smaller ones"
        )
        why = "Of each operator it says the rank, 0 or 1."
        trials.require_near_best_of(
            [choice_of(best)], answer, case(graph, message), where, why, hint
        )


@PLACE.check("messages take no time", points=2)
def check_free(answer: Answer) -> None:
    """Equal work is not enough: who needs whom?"""
    _require(
        answer,
        FREE,
        "What has to be done one after the other, whichever ranks do it, and what could run beside it?",
    )


@PLACE.check("a message takes as long as an operator", points=3)
def check_messages(answer: Answer) -> None:
    """A cut costs, forward and backward."""
    _require(
        answer,
        MESSAGES,
        "How many tensors cross, which way, and which rank waits for each, forward and backward?",
    )


@PLACE.check("messages take longer than operators", points=3)
def check_dear(answer: Answer) -> None:
    """Two ranks are not always better than one."""
    _require(answer, DEAR, "What does the second rank save here, and what do its messages cost?")
