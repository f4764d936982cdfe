"""The checks of lesson 02: strangers number themselves, a halo exchange, a broadcast tree, the groups of a grid."""

from __future__ import annotations

import math
import os
import random
import time
from datetime import timedelta
from typing import Any

import torch

from dtcourse.course.checks import Answer, Exercise, require
from dtcourse.course.checks.framework import CheckFailed

# --- 1. strangers number themselves -------------------------------------------------------------------------------

MEET = Exercise(
    "meet",
    lesson="02",
    title="Strangers number themselves",
    takes=("meet",),
    target="4 processes, 4 numbers, 4 addresses, with at most world_size + 3 requests to the store from each",
)


_PATIENCE = 2.0  # seconds that a key may be missing


class _WatchedStore:
    """A store that counts requests, and lets a moment pass after each answer, in which others may come first."""

    def __init__(self, store: Any, pause: float = 0.0) -> None:
        self._store, self._pause = store, pause
        self.requests = 0

    def _ask(self, operation: str, *args: Any) -> Any:
        self.requests += 1
        answer = getattr(self._store, operation)(*args)
        time.sleep(self._pause)
        return answer

    def _until_set(self, keys: list[str]) -> None:
        limit = time.monotonic() + _PATIENCE
        while not self._store.check(keys):
            if time.monotonic() > limit:
                missing = [key for key in keys if not self._store.check([key])]
                raise CheckFailed(
                    f"a process waited for the key {missing[0]!r}, and nobody ever set it. Either two processes have the same number, and "
                    "one has written over the other's address; then look at how a number is found: can another process come between your "
                    "reading and your writing? Or you wait for a number that nobody has: which is the first, which the last?"
                )
            time.sleep(0.005)

    def set(self, key: str, value: Any) -> None:
        """As the store's own, counted."""
        self._ask("set", key, value if isinstance(value, bytes) else str(value))

    def get(self, key: str) -> bytes:
        """As the store's own, counted; a wait in vain ends in a sentence."""
        self._until_set([key])
        return self._ask("get", key)

    def add(self, key: str, amount: int) -> int:
        """As the store's own, counted."""
        return self._ask("add", key, amount)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        """As the store's own, counted; a wait in vain ends in a sentence."""
        self._until_set(keys)
        self._ask("wait", keys, *timeout)

    def check(self, keys: list[str]) -> bool:
        """As the store's own, counted."""
        return self._ask("check", keys)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """As the store's own, counted."""
        return self._ask("compare_set", key, expected, desired)


def _meeting(meet: Any, addresses: list[str], delays: list[float], pause: float) -> dict[str, Any]:
    import torch.distributed as dist

    rank, world_size = dist.get_rank(), dist.get_world_size()
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    client = dist.TCPStore(*place, is_master=False)
    store = _WatchedStore(dist.PrefixStore("meeting", client), pause)
    dist.barrier()  # from here on they are strangers
    time.sleep(delays[rank])
    arrived = time.monotonic()
    number, everyone = meet(store, addresses[rank], world_size)
    left = time.monotonic()
    texts = [one.decode() if isinstance(one, bytes) else one for one in everyone]
    return {
        "number": number,
        "addresses": texts,
        "requests": store.requests,
        "arrived": arrived,
        "left": left,
    }


def _addresses(world_size: int) -> list[str]:
    return [f"10.0.0.{n}:{random.randrange(2000, 60000)}" for n in range(world_size)]


@MEET.check("a number for each, though all arrive in the same instant", points=3)
def check_numbers(answer: Answer) -> None:
    """No number is given twice, and they start at 0."""
    for world_size in (2, 4):
        run = answer.run(
            _meeting, world_size, _addresses(world_size), [0.0] * world_size, 0.1, timeout=15
        )
        numbers = sorted(one["number"] for one in run)
        require(
            len(set(numbers)) == world_size,
            f"{world_size} processes arrived at once, and got the numbers {numbers}: some share one. Between your reading a "
            "value and your writing it, another process may read the same. Which operation of a store does both in one step?",
        )
        require(
            numbers == list(range(world_size)),
            f"{world_size} processes should have the numbers 0 to {world_size - 1}; they got {numbers}. What does the first `add` return?",
        )


@MEET.check("everyone's address, in the order of the numbers", points=2)
def check_addresses(answer: Answer) -> None:
    """Each list holds at place n the address of number n."""
    for world_size in (3, 4):
        addresses = _addresses(world_size)
        run = answer.run(_meeting, world_size, addresses, [0.0] * world_size, 0.0, timeout=15)
        right = [
            address
            for _, address in sorted((run[r]["number"], addresses[r]) for r in range(world_size))
        ]
        for one in run:
            require(
                one["addresses"] == right,
                f"number {one['number']} of {world_size} came back with the addresses {one['addresses']}; by number they are "
                f"{right}. Under which key does each process leave its address, and in which order do you read them?",
            )


@MEET.check("early ones wait for late ones, with few requests", points=3)
def check_waiting(answer: Answer) -> None:
    """The order of arrival decides; nobody returns before the last one came; nobody polls."""
    world_size = 4
    delays = [0.45, 0.3, 0.15, 0.0]  # the highest rank comes first
    run = answer.run(_meeting, world_size, _addresses(world_size), delays, 0.0, timeout=15)
    numbers = [one["number"] for one in run]
    last = max(one["arrived"] for one in run)
    early = [one["number"] for one in run if one["left"] < last]
    require(
        not early,
        f"number {early[:1]} had returned before the last process came: it cannot know all addresses. What does `get` do with a key that nobody has set yet?",
    )
    order = sorted(range(world_size), key=lambda rank: run[rank]["arrived"])
    require(
        [numbers[rank] for rank in order] == list(range(world_size)),
        f"the processes arrived one after the other, and were numbered {[numbers[rank] for rank in order]}: numbers follow the order of "
        "arrival. These are strangers: nobody has told them a rank.",
    )
    most = max(one["requests"] for one in run)
    require(
        most <= world_size + 3,
        f"a process asked the store {most} times; {world_size + 3} are enough for {world_size} processes. Do you ask again and again? `get` and `wait` wait for you.",
    )


# --- 2. both neighbours -------------------------------------------------------------------------------------------

HALO = Exercise(
    "exchange_both",
    lesson="02",
    title="Both neighbours",
    takes=("exchange_both",),
    target="2 messages a rank, no deadlock at 2, 3, 4 and 5 ranks, all messages at once",
)


def _exchange(exchange_both: Any, to_left: list[torch.Tensor], to_right: list[torch.Tensor]) -> Any:
    import torch.distributed as dist

    rank = dist.get_rank()
    dist.barrier()
    start = time.monotonic()
    from_left, from_right = exchange_both(to_left[rank].clone(), to_right[rank].clone())
    return {"left": from_left, "right": from_right, "seconds": time.monotonic() - start}


def _pairs(world_size: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    return tuple([torch.randn(3, 2) for _ in range(world_size)] for _ in range(2))  # type: ignore[return-value]


@HALO.check("the right tensors from both sides, without a deadlock", points=4)
def check_exchange(answer: Answer) -> None:
    """At 3, 4 and 5 ranks, then at 2, where both neighbours are one rank."""
    for world_size in (3, 4, 5, 2):
        to_left, to_right = _pairs(world_size)
        run = answer.run(_exchange, world_size, to_left, to_right, timeout=6)
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
    run = answer.run(_exchange, world_size, to_left, to_right, record=True, timeout=10)
    used = sorted(set(run.traffic.operations) - {"send", "recv", "barrier"})
    require(
        not used,
        f"{', '.join(used)} sends everything to everyone; this exercise is about one message to each neighbour, with send and receive.",
    )
    nbytes = to_left[0].numel() * to_left[0].element_size()
    for rank in range(world_size):
        sent = run.traffic.messages_sent(rank=rank, operation="send")
        volume = run.traffic.bytes_sent(rank=rank, operation="send")
        require(
            (sent, volume) == (2, 2 * nbytes),
            f"rank {rank} sent {sent} messages with {volume} bytes; 2 messages of {nbytes} bytes are needed, one for each neighbour.",
        )


@HALO.check("all messages travel at once", points=2)
def check_together(answer: Answer) -> None:
    """On links where each message takes 0.3 s, less than two of them one after the other."""
    from dtcourse.collectives.network import EmulatedNetwork

    to_left, to_right = _pairs(4)
    slow = EmulatedNetwork(latency=0.4, bandwidth=1e9)
    run = answer.run(_exchange, 4, to_left, to_right, network=slow, timeout=15)
    seconds = max(one["seconds"] for one in run)
    require(
        seconds < 0.75,
        f"one message takes 0.4 s here, and your exchange took {seconds:.2f} s: some message waits for another to arrive. "
        "Can you start all of them before you wait for the first?",
    )


# --- 3. a tree that broadcasts ------------------------------------------------------------------------------------

TREE = Exercise(
    "tree_broadcast",
    lesson="02",
    title="A tree that broadcasts",
    takes=("tree_broadcast",),
    target="n - 1 messages and ceil(log2 n) rounds: 3 rounds for 8 ranks",
)


def _broadcast(tree_broadcast: Any, values: list[torch.Tensor], src: int) -> torch.Tensor:
    import torch.distributed as dist

    tensor = values[dist.get_rank()].clone()
    tree_broadcast(tensor, src)
    return tensor


def _values(world_size: int) -> list[torch.Tensor]:
    return [torch.randn(4) for _ in range(world_size)]


@TREE.check("every rank ends with the tensor of rank 0", points=2)
def check_from_zero(answer: Answer) -> None:
    """At 2, 4, 3 and 5 ranks."""
    for world_size in (2, 4, 3, 5):
        _check_broadcast(answer, world_size, 0)


@TREE.check("from any rank, not only from rank 0", points=2)
def check_from_any(answer: Answer) -> None:
    """A random source, and the last one."""
    for world_size, src in ((4, random.randrange(1, 3)), (3, 2), (5, 4)):
        _check_broadcast(answer, world_size, src)


def _check_broadcast(answer: Answer, world_size: int, src: int) -> None:
    values = _values(world_size)
    run = answer.run(_broadcast, world_size, values, src, timeout=6)
    for rank in range(world_size):
        require(
            torch.equal(run[rank], values[src]),
            f"with {world_size} ranks and src={src}, rank {rank} should hold what rank {src} had, and does not. "
            "Who sends to it, and in which round? Is the tensor changed in place?",
        )


@TREE.check("n - 1 messages, by send and receive alone", points=2)
def check_count(answer: Answer) -> None:
    """Everyone but the source receives once."""
    for world_size in (5, 8):
        run = answer.run(_broadcast, world_size, _values(world_size), 0, record=True, timeout=15)
        used = sorted(set(run.traffic.operations) - {"send", "recv"})
        require(
            not used,
            f"this answer calls {', '.join(used)}; build the broadcast yourself, from send and receive alone.",
        )
        sent = run.traffic.messages_sent(operation="send")
        require(
            sent == world_size - 1,
            f"{world_size} ranks need {world_size - 1} messages, one for each rank that does not have the tensor yet; yours were {sent}.",
        )


@TREE.check("ceil(log2 n) rounds", points=2)
def check_rounds(answer: Answer) -> None:
    """A message leaves when its sender has the tensor and has sent its message before: what takes how many rounds?"""
    for world_size in (4, 5, 8):
        run = answer.run(_broadcast, world_size, _values(world_size), 0, record=True, timeout=15)
        sends: dict[int, list[int]] = {rank: [] for rank in range(world_size)}
        for event in run.timeline.of(name="send"):  # in the order in which they started
            sends[event.rank].append(event.detail["peer"])
        has = {0: 0}  # rank: the round after which it has the tensor
        front = [0]
        while front:
            rank = front.pop()
            for number, peer in enumerate(sends[rank], 1):
                if peer not in has:
                    has[peer] = has[rank] + number
                    front.append(peer)
        rounds, needed = max(has.values()), math.ceil(math.log2(world_size))
        late = max(has, key=lambda rank: has[rank])
        require(
            rounds <= needed,
            f"with {world_size} ranks, rank {late} has the tensor after {rounds} rounds; {needed} are enough. In each round, everyone who has it can pass it on: "
            "do all of them? And does each first serve the rank that has the most others to serve?",
        )


# --- 4. rows and columns ------------------------------------------------------------------------------------------

GRID = Exercise(
    "grid_groups",
    lesson="02",
    title="Rows and columns",
    takes=("grid_groups",),
    target="1 row and 1 column for every rank on grids of 2 x 2, 2 x 3, 3 x 2 and 1 x 4",
)


def _grid(grid_groups: Any, columns: int) -> Any:
    """The members of both groups, and the sum over each. All ranks' calls of new_group are compared as they are made."""
    import torch.distributed as dist

    new_group, world_size = dist.new_group, dist.get_world_size()

    def watched(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not kwargs.get("use_local_synchronization"):
            asked: list[Any] = [None] * world_size
            dist.all_gather_object(asked, list(range(world_size) if ranks is None else ranks))
            for rank, other in enumerate(asked):
                if other != asked[0]:
                    raise CheckFailed(
                        f"With {world_size} ranks and {columns} columns, rank 0 calls new_group({asked[0]}) while rank {rank} calls "
                        f"new_group({other}). Every rank has to call it for every group, in the same order, its own or not."
                    )
        return new_group(ranks, *args, **kwargs)

    dist.new_group = watched
    try:
        groups = tuple(grid_groups(columns))
    finally:
        dist.new_group = new_group
    if len(groups) != 2 or any(dist.get_rank(group) < 0 for group in groups if group is not None):
        raise CheckFailed(
            f"With {world_size} ranks and {columns} columns, rank {dist.get_rank()} should get two groups that it is a member of: its row, then its column."
        )
    members = [list(dist.get_process_group_ranks(group)) for group in groups]
    everyone: list[Any] = [None] * world_size
    dist.all_gather_object(everyone, members)
    sums = [0, 0]
    if _agree(everyone):
        for axis, group in enumerate(groups):
            total = torch.tensor([10 ** dist.get_rank()])
            dist.all_reduce(total, group=group)
            sums[axis] = int(total)
    return {"members": members, "sums": sums}


def _agree(everyone: list[list[list[int]]]) -> bool:
    """Whether all ranks of each group name the same members: only then does a sum over it come to an end."""
    return all(
        everyone[peer][axis] == mine[axis]
        for mine in everyone
        for axis in (0, 1)
        for peer in mine[axis]
    )


@GRID.check("square grids: my row, then my column", points=2)
def check_square(answer: Answer) -> None:
    """2 x 2."""
    _check_grid(answer, 2, 2)


@GRID.check("grids that are not square", points=3)
def check_oblong(answer: Answer) -> None:
    """2 x 3, 3 x 2, 1 x 4."""
    for rows, columns in ((2, 3), (3, 2), (1, 4)):
        _check_grid(answer, rows, columns)


def _check_grid(answer: Answer, rows: int, columns: int) -> None:
    run = answer.run(_grid, rows * columns, columns, timeout=8)
    for rank in range(rows * columns):
        row, column = divmod(rank, columns)
        right = [
            [row * columns + c for c in range(columns)],
            [r * columns + column for r in range(rows)],
        ]
        for name, expected, members, total in zip(
            ("row", "column"), right, run[rank]["members"], run[rank]["sums"], strict=True
        ):
            swapped = (
                " Is that its column? The row comes first."
                if name == "row" and sorted(members) == right[1]
                else ""
            )
            require(
                sorted(members) == expected,
                f"on a grid of {rows} x {columns}, rank {rank} stands in row {row}, column {column}: the ranks of its {name} are {expected}; got {members}."
                + (swapped or " Ranks are placed row by row: which number stands one row below?"),
            )
            require(
                total == sum(10**r for r in expected),
                f"on a grid of {rows} x {columns}, the group of rank {rank}'s {name} does not reach all of {expected}.",
            )


def _unfilled(grid_groups: Any, columns: int) -> str:
    try:
        grid_groups(columns)
    except ValueError as error:
        return f"ValueError: {error}"
    return "returned"


@GRID.check("a grid that the ranks do not fill is refused, with the numbers", points=3)
def check_unfilled(answer: Answer) -> None:
    """5 ranks, 2 columns; 3 ranks, 4 columns."""
    for world_size, columns in ((5, 2), (3, 4)):
        run = answer.run(_unfilled, world_size, columns, timeout=8)
        for said in run:
            require(
                said.startswith("ValueError"),
                f"{world_size} ranks cannot fill rows of {columns}. Your function made a grid all the same; a ValueError would say it at once, on every rank, before any group is made.",
            )
            require(
                str(world_size) in said and str(columns) in said,
                f"the message of your ValueError is {said.partition(': ')[2]!r}; name the number of ranks ({world_size}) and of columns ({columns}), so that its reader need not look for them.",
            )
