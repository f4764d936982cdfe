"""Both neighbours."""

from __future__ import annotations

from typing import Any

import torch

from dtcourse.course.judging import Answer, Each, Exercise, require
from dtcourse.course.judging.forbidden import ALGORITHMS

HALO = Exercise(
    "exchange_both",
    lesson="02",
    title="Both neighbours",
    takes=("exchange_both",),
    target="2 messages per rank, no deadlock at 2, 3, 4 and 5 ranks, all messages at once",
    forbidden=(*ALGORITHMS,),
)


def _exchange(exchange_both: Any, to_left: torch.Tensor, to_right: torch.Tensor) -> Any:
    from_left, from_right = exchange_both(to_left, to_right)
    return {"left": from_left, "right": from_right}


def _steps_of_exchange(
    exchange_both: Any, to_left: torch.Tensor, to_right: torch.Tensor
) -> list[str]:
    """What this rank does, in the order of its own program: "send" and "recv" start a message, "recv done" waits."""
    from dtcourse.collectives.wire.observers import Observer, observing

    steps: list[str] = []

    class Steps(Observer):
        def begins(self, message: Any) -> None:
            steps.append(message.kind)

        def waited(self, message: Any, since: float) -> None:
            steps.append(f"{message.kind} done")

        def found(self, message: Any) -> None:
            steps.append(f"{message.kind} done")

    with observing(Steps()):
        _exchange(exchange_both, to_left, to_right)
    return steps


def _pairs(world_size: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return tuple([torch.randn(3, 2) for _ in range(world_size)] for _ in range(2))  # type: ignore[return-value]


@HALO.check("the right tensors from both sides, without a deadlock", points=4)
def check_exchange(answer: Answer) -> None:
    """At 3, 4 and 5 ranks, then at 2, where both neighbours are one rank."""
    for world_size in (3, 4, 5, 2):
        to_left, to_right = _pairs(world_size)
        # Recorded, since a rank that there is not is then refused with a sentence; gloo alone ends the process,
        # or waits.
        run = answer.run(
            _exchange, world_size, Each(to_left), Each(to_right), record=True, timeout=6
        )
        for rank in range(world_size):
            left, right = (rank - 1) % world_size, (rank + 1) % world_size
            ring = f"with {world_size} ranks, rank {rank}"
            same = (
                " Its two neighbours are one rank: two messages go the same way. Which one is received first?"
                * (world_size == 2)
            )
            require(
                torch.equal(run[rank]["left"], to_right[left]),
                f"{ring} should get from the left what rank {left} had for its right; it got something else."
                + (
                    same
                    or " Whom do you receive from, and does the tensor hold the message yet when you return it?"
                ),
            )
            require(
                torch.equal(run[rank]["right"], to_left[right]),
                f"{ring} should get from the right what rank {right} had for its left; it got something else."
                + (same or " Which neighbour's message is it?"),
            )


@HALO.check("2 messages from each rank, and no more bytes than needed", points=2)
def check_messages(answer: Answer) -> None:
    """Counted where messages leave a rank."""
    world_size = 4
    to_left, to_right = _pairs(world_size)
    run = answer.run(_exchange, world_size, Each(to_left), Each(to_right), record=True, timeout=10)
    used = sorted(set(run.traffic.operations) - {"send", "recv", "barrier"})
    require(
        not used,
        f"{', '.join(used)} sends everything to everyone; this exercise is about one message to each neighbour, "
        "with send and receive.",
    )
    nbytes = to_left[0].numel() * to_left[0].element_size()
    for rank in range(world_size):
        sent = run.traffic.messages_sent(rank=rank, operation="send")
        volume = run.traffic.bytes_sent(rank=rank, operation="send")
        require(
            (sent, volume) == (2, 2 * nbytes),
            f"rank {rank} sent {sent} messages with {volume} bytes; 2 messages of {nbytes} bytes are needed, one "
            "for each neighbour.",
        )
        came = run.traffic.bytes_received(rank=rank)
        require(
            came == 2 * nbytes,
            f"rank {rank} receives {came} bytes; its neighbours' two messages have {2 * nbytes}.",
        )


@HALO.check("all messages travel at once", points=2)
def check_together(answer: Answer) -> None:
    """By the order of each rank's own steps: it starts both of its messages before it waits for one of the others'."""
    to_left, to_right = _pairs(4)
    run = answer.run(_steps_of_exchange, 4, Each(to_left), Each(to_right), record=True, timeout=15)
    for rank, steps in enumerate(run):
        waited = steps.index("recv done") if "recv done" in steps else len(steps)
        started = steps[:waited].count("send")
        require(
            started == 2,
            f"rank {rank} waits for a message of a neighbour when it has started {started} of its own 2: some "
            "message waits for another to arrive. Can you start all of them before you wait for the first?",
        )
