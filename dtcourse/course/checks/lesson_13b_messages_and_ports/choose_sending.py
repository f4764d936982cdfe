"""Buckets and a wait in backward, or slices by priority and a wait in forward; and how large. Really run, emulated."""

from __future__ import annotations

import torch

from dtcourse.communication_scheduling import Slice, send_order
from dtcourse.course.judging import Answer, Exercise, require_near_best, trials
from dtcourse.emulation import EmulatedNetwork

CHOOSE = Exercise(
    "choose_sending",
    lesson="13b",
    title="Choose how to send",
    takes=("choose_sending",),
    launches=True,
    target="on 4 clusters a step of at most 1.01 times the best choice's, measured; at most 8 of 12 choices tried",
)

RANKS, LAYERS, ELEMENTS = 2, 12, 240  # elements of a layer's gradient
MOST = 8  # choices that an answer may try
BUCKETS, SLICES = (1, 2, 3, 4, 6, 12), (1, 2, 3, 4, 6, 8)
CHOICES: list[trials.Choice] = [
    *(("backward", n) for n in BUCKETS),
    *(("forward", n) for n in SLICES),
]
# Milliseconds: a layer's forward and backward; an all-reduce, beside its bytes; a layer's bytes.
Cluster = tuple[float, float, float, float]
# With the best choice, which tests/course/test_choose_sending.py finds by running every one.
BYTES: dict[Cluster, trials.Choice] = {
    (1, 2, 0.02, 3): ("forward", 3),
    (2, 2, 0.5, 3): ("forward", 2),
}
MESSAGES: dict[Cluster, trials.Choice] = {
    (1, 2, 3, 1): ("backward", 3),
    (2, 2, 1.5, 2.5): ("forward", 1),
}


def step(
    choice: trials.Choice, forward: float, backward: float, message: float, nbytes: float
) -> tuple[float]:
    """On each rank: seconds from a backward's begin to the next forward's end. Arguments as in a Cluster."""
    from dtcourse import emulation

    wait_in, number = choice
    start = trials.begin_together()
    if wait_in == "backward":
        _in_buckets(number, forward, backward)
    else:
        _by_priority(number, forward, backward, message + nbytes / number)
    return (emulation.now() - start,)


def _in_buckets(number: int, forward: float, backward: float) -> None:
    """A bucket leaves when its last layer is ready; forward begins when all have arrived."""
    import torch.distributed as dist

    from dtcourse import emulation

    works = []
    for made in range(1, LAYERS + 1):
        emulation.sleep(backward / 1e3)
        if made % number == 0:
            works.append(dist.all_reduce(torch.ones(number * ELEMENTS), async_op=True))
    for work in works:
        work.wait()
    emulation.sleep(LAYERS * forward / 1e3)


def _by_priority(number: int, forward: float, backward: float, slice_ms: float) -> None:
    """Slices leave in the plan's order, as PriorityDataParallel sends them; each layer waits for its own."""
    import torch.distributed as dist

    from dtcourse import emulation

    size = ELEMENTS // number
    last_first = [layer for layer in reversed(range(LAYERS)) for _ in range(number)]
    slices = [
        Slice(layer, 0, size, 1, (LAYERS - layer) * backward, layer, slice_ms)
        for layer in last_first
    ]
    order = [last_first[i] for i in send_order(slices, credit_bytes=1)]
    sent: list[list[dist.Work]] = [[] for _ in range(LAYERS)]
    turn = 0
    for layer in reversed(range(LAYERS)):
        emulation.sleep(backward / 1e3)
        while turn < len(order) and order[turn] >= layer:
            work = dist.all_reduce(torch.ones(size), async_op=True)
            sent[order[turn]].append(work)
            turn += 1
    for works in sent:
        for work in works:
            work.wait()
        emulation.sleep(forward / 1e3)


def case(cluster: Cluster) -> trials.Case:
    """A cluster, as an answer gets it."""
    _, _, message, nbytes = cluster
    # A ring of two: two messages, and each rank sends as many bytes as the gradient has.
    network = EmulatedNetwork(message / 2e3, 4 * ELEMENTS / (nbytes / 1e3))
    told = (BUCKETS, SLICES)
    return trials.Case(step, RANKS, CHOICES, cluster, told, MOST, {"network": network})


PRACTICE = case(next(iter(BYTES)))


def _require(answer: Answer, cases: dict[Cluster, trials.Choice], hint: str) -> None:
    for cluster, best in cases.items():
        forward, backward, message, nbytes = cluster
        where = (
            f"{LAYERS} layers, forward {forward:g} ms, backward {backward:g} ms, {message:g} ms per message, "
            f"{nbytes:g} ms for a layer's bytes"
        )
        tried = case(cluster).tried(answer, step, [best])
        ((least,),) = tried.probed
        (taken,) = trials.require_possible(
            where,
            tried,
            ("forward", 2),
            f"Possible are 'backward' with one of {BUCKETS}, and 'forward' with one of {SLICES}.",
        )
        require_near_best(where, tried.choice, taken * 1e3, least * 1e3, "ms", hint)


@CHOOSE.check("where bytes count", points=4)
def check_bytes(answer: Answer) -> None:
    """A layer's bytes take longer than its backward."""
    _require(
        answer,
        BYTES,
        "What does the next forward wait for, and whom does a smaller slice let pass? Was each side of your choice "
        "measured?",
    )


@CHOOSE.check("where messages count", points=4)
def check_messages(answer: Answer) -> None:
    """A message costs as much as a layer's backward, or more."""
    _require(
        answer,
        MESSAGES,
        "How many messages does each choice send, and what does each cost? Was the other way measured as well?",
    )
