"""Into how many slices the layers of a model go that are not alike, by priority. Really run, under emulation."""

from __future__ import annotations

from itertools import product

import torch

from dtcourse.communication_scheduling import Slice, send_order
from dtcourse.course.judging import Answer, Exercise, trials
from dtcourse.emulation import EmulatedNetwork

CHOOSE = Exercise(
    "choose_slices",
    lesson="13",
    title="Choose the slices",
    takes=("choose_slices",),
    target="on 4 clusters a step of at most 1.01 times the best choice's; at most 10 of 64 choices measured",
    launches=True,
)

RANKS, LAYERS, THIRD = 2, 6, 2  # layers of a third of the model
ELEMENTS = 80  # of a gradient that passes in a millisecond
MOST = 10  # choices that an answer may measure
NUMBERS = (1, 2, 4, 8)
CHOICES: list[trials.Choice] = list(product(NUMBERS, repeat=3))
# Milliseconds: each layer's forward, of which its backward takes twice; each gradient's bytes; a message besides.
Cluster = tuple[tuple[float, ...], tuple[float, ...], float]
# With the best choice, which tests/course/test_choose_slices.py finds by running every one.
LATE: dict[Cluster, trials.Choice] = {
    ((2, 1, 1, 0.5, 2, 2), (1.6, 1.6, 0.8, 1.6, 6.4, 6.4), 0.4): (1, 1, 4),
    ((2, 2, 0.5, 2, 0.5, 0.5), (0.4, 1.6, 0.4, 0.4, 9.6, 6.4), 0.8): (1, 1, 2),
}
ELSEWHERE: dict[Cluster, trials.Choice] = {
    ((1, 2, 2, 1, 2, 2), (1.6, 0.4, 4.8, 6.4, 1.6, 1.6), 0.8): (1, 2, 1),
    ((1, 1, 0.5, 1, 1, 2), (6.4, 4.8, 1.6, 0.8, 3.2, 1.6), 1.6): (1, 1, 1),
}


def step(
    choice: trials.Choice, forward: tuple[float, ...], sizes: tuple[float, ...], message: float
) -> tuple[float]:
    """On each rank: seconds from a backward's begin to the next forward's end. Arguments as in a Cluster."""
    import torch.distributed as dist

    from dtcourse import emulation

    number = [choice[layer // THIRD] for layer in range(LAYERS)]
    elements = [round(size * ELEMENTS) // n for size, n in zip(sizes, number, strict=True)]
    start = trials.begin_together()
    order = planned(choice, forward, sizes, message)
    sent: list[list[dist.Work]] = [[] for _ in range(LAYERS)]
    turn = 0
    for layer in reversed(range(LAYERS)):
        emulation.sleep(2 * forward[layer] / 1e3)
        while turn < len(order) and order[turn] >= layer:
            work = dist.all_reduce(torch.ones(elements[order[turn]]), async_op=True)
            sent[order[turn]].append(work)
            turn += 1
    for works, seconds in zip(sent, forward, strict=True):
        for work in works:
            work.wait()
        emulation.sleep(seconds / 1e3)
    return (emulation.now() - start,)


def planned(
    choice: trials.Choice, forward: tuple[float, ...], sizes: tuple[float, ...], message: float
) -> list[int]:
    """The layer of each slice, in the order in which PriorityDataParallel sends them, with a credit of one slice."""
    number = [choice[layer // THIRD] for layer in range(LAYERS)]
    last_first = [layer for layer in reversed(range(LAYERS)) for _ in range(number[layer])]
    slices = [
        Slice(i, 0, 1, 1, 2 * sum(forward[i:]), i, message + sizes[i] / number[i])
        for i in last_first
    ]
    return [last_first[place] for place in send_order(slices, credit_bytes=1)]


def case(cluster: Cluster) -> trials.Case:
    """A cluster, as an answer gets it."""
    # A ring of two: two messages, and each rank sends as many bytes as the gradient has.
    network = EmulatedNetwork(cluster[2] / 2e3, 4 * ELEMENTS * 1e3)
    told = (*cluster, list(NUMBERS))
    return trials.Case(step, RANKS, CHOICES, cluster, told, MOST, {"network": network})


PRACTICE = case(((1, 1, 1, 1, 1, 1), (0.8, 0.8, 3.2, 1.6, 6.4, 3.2), 0.2))


def _require(answer: Answer, cases: dict[Cluster, trials.Choice], hint: str) -> None:
    for cluster, best in cases.items():
        forward, sizes, message = cluster
        where = (
            f"Layers of {', '.join(f'{one:g}' for one in forward)} ms forward, gradients of "
            f"{', '.join(f'{one:g}' for one in sizes)} ms, {message:g} ms per message"
        )
        why = f"Each of the three numbers is one of {NUMBERS}."
        trials.require_near_best_of([best], answer, case(cluster), where, why, hint)


@CHOOSE.check("the last layers are large", points=4)
def check_late(answer: Answer) -> None:
    """They are ready first, and under way when the others are."""
    _require(
        answer,
        LATE,
        "Whose slice is under way when the first layers are ready, and how long do they wait for it? What is won where "
        "nothing has to pass?",
    )


@CHOOSE.check("other layers are large, or messages dear", points=4)
def check_elsewhere(answer: Answer) -> None:
    """The first layer has nobody to let pass."""
    _require(
        answer,
        ELSEWHERE,
        "Which layers have to let one pass here, and does that win more than messages cost? Was each third measured "
        "with fewer slices?",
    )
