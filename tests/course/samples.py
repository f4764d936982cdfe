"""Exercises made for these tests: real checks on real ranks, with answers right and wrong."""

from __future__ import annotations

import random
import sys

import torch

from dtcourse.course.judging import Answer, Each, Exercise, require, simulated, trials
from dtcourse.emulation import EmulatedDevice, EmulatedNetwork

SHIFT = Exercise(
    "shift",
    lesson="00",
    title="Pass it to the right",
    takes=("shift",),
    target="1 message per rank, no deadlock at 2 and 3 ranks",
)


def _shift(shift, own):
    return shift(own)


@SHIFT.check("each rank gets its left neighbour's tensor", points=3)
def check_values(answer: Answer) -> None:
    for world_size in (2, 3):
        values = [torch.randn(5) for _ in range(world_size)]
        run = answer.run(_shift, world_size, Each(values), timeout=5)
        for rank in range(world_size):
            require(
                torch.equal(run[rank], values[rank - 1]),
                f"with {world_size} ranks, rank {rank} should hold what its left neighbour had.",
            )


@SHIFT.check("one message per rank", points=1)
def check_messages(answer: Answer) -> None:
    run = answer.run(_shift, 3, Each([torch.ones(5)] * 3), record=True, timeout=5)
    for rank in range(3):
        sent = run.traffic.messages_sent(rank=rank)
        require(sent == 1, f"rank {rank} sent {sent} messages; one is enough.")


QUICK = Exercise(
    "quick", lesson="00", title="Pass it on", takes=("quick",), target="1 second on 2 ranks"
)


def _quick(quick, own):
    from dtcourse import emulation

    start = emulation.now()
    return quick(own), emulation.now() - start


@QUICK.check("each rank gets the other's tensor, in one message's time", points=2)
def check_quick(answer: Answer) -> None:
    values, network = [torch.randn(5) for _ in range(2)], EmulatedNetwork(latency=1.0)
    run = answer.run(_quick, 2, Each(values), network=network, clock="virtual", timeout=5)
    for rank, (got, seconds) in enumerate(run):
        require(torch.equal(got, values[1 - rank]), f"rank {rank} should hold the other's tensor.")
        require(seconds == 1, f"rank {rank} took {seconds:g} s; a message takes one.")


DOUBLE = Exercise(
    "double", lesson="00", title="Double it", takes=("double",), target="2 times the input"
)


def _double(double, number):
    return double(number)


@DOUBLE.check("twice the number", points=2)
def check_double(answer: Answer) -> None:
    number = random.randrange(10**6)
    require(
        answer.call(_double, number, timeout=5) == 2 * number,
        f"double({number}) should be {2 * number}.",
    )


# Decisions: what a number costs is drawn, so an answer that may try 3 of 12 finds the cheapest once in 4 times.
NUMBERS, MAY_TRY = 12, 3
CHOICES: list[trials.Choice] = [(number,) for number in range(NUMBERS)]
GUESS = Exercise(
    "guess", lesson="00", title="Guess", takes=("guess",), target="the cheapest, 3 of 12 tried"
)


def _cost(choice, costs):
    return (costs[choice[0]],)


def _require_cheapest(tried: trials.Tried, costs: list[float]) -> None:
    trials.require_possible("Here", tried, (0,), "It is one of twelve numbers.")
    require(costs[tried.choice[0]] == min(costs), "another one is cheaper.")


@GUESS.check("the cheapest", points=2)
def check_guess(answer: Answer) -> None:
    costs = [float(cost) for cost in random.sample(range(100, 1000), NUMBERS)]
    case = simulated.Simulated(_cost, CHOICES, (costs,), (NUMBERS,), MAY_TRY)
    _require_cheapest(case.tried(answer), costs)


PICK = Exercise(
    "pick", lesson="00", title="Pick", takes=("pick",), target="the quickest, 3 of 12 tried"
)


def _wait(choice, costs):
    from dtcourse import emulation

    start = trials.begin_together()
    emulation.sleep(costs[choice[0]] if costs else 0.0)
    return (emulation.now() - start,)


@PICK.check("the quickest", points=2)
def check_pick(answer: Answer) -> None:
    costs = [float(cost) for cost in random.sample(range(100, 1000), NUMBERS)]
    cluster = {"devices": EmulatedDevice()}
    case = trials.Case(_wait, 2, CHOICES, (), (NUMBERS,), MAY_TRY, cluster, (costs,))
    _require_cheapest(case.tried(answer), costs)


# An answer that is called like a collective.
ENDS = Exercise("ends", lesson="00", title="Ends", takes=("all_gather",), target="1 result")


def _all_gather(all_gather):
    return all_gather()


@ENDS.check("comes to an end")
def check_the_end(answer: Answer) -> None:
    answer.run(_all_gather, 2, timeout=4)


# The same for one that never ends, for which every limit is long enough.
ENDS_SOON = Exercise(
    "ends_soon", lesson="00", title="Ends", takes=("all_gather",), target="1 result"
)


@ENDS_SOON.check("comes to an end")
def check_the_end_soon(answer: Answer) -> None:
    answer.run(_all_gather, 2, timeout=1)


def _is_there(function):
    return function is not None


def _loaded(_):
    return sorted(name for name in sys.modules if name.startswith(("torch", "dtcourse")))


GOOD = """
def shift(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    sending = p2p.isend(tensor, (rank + 1) % size)
    p2p.recv(received, (rank - 1) % size)
    sending.wait()
    return received
"""

IMPORTS = """
import torch
import torch.distributed as dist
from dtcourse.collectives import p2p
from dtcourse.course import check
"""


def notebook(*cells: str) -> dict:
    """A notebook with these code cells."""
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {},
        "cells": [
            {
                "cell_type": "code",
                "metadata": {},
                "source": cell,
                "outputs": [],
                "execution_count": None,
            }
            for cell in cells
        ],
    }
