"""Plausible wrong answers to the exercises of lesson 02: (what is wrong, what the check says, the code)."""

_EXCHANGE = """
def exchange_both(to_left, to_right):
    import torch
    import torch.distributed as dist
    rank, world_size = dist.get_rank(), dist.get_world_size()
    left, right = (rank - 1) % world_size, (rank + 1) % world_size
    from_left, from_right = torch.empty_like(to_right), torch.empty_like(to_left)
    {body}
    return from_left, from_right
"""


def _exchange(body: str) -> str:
    return _EXCHANGE.replace("{body}", body.strip().replace("\n", "\n    "))


_TREE = """
def tree_broadcast(tensor, src=0):
    import torch.distributed as dist
    rank, world_size = dist.get_rank(), dist.get_world_size()
    {body}
"""


def _tree(body: str) -> str:
    return _TREE.replace("{body}", body.strip().replace("\n", "\n    "))


_GRID = """
def grid_groups(columns):
    import torch.distributed as dist
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size % columns:
        raise ValueError(f"{world_size} ranks do not fill rows of {columns}")
    {body}
"""


def _grid(body: str) -> str:
    return _GRID.replace("{body}", body.strip().replace("\n", "\n    "))


MUTANTS = {
    "meet": [
        (
            "reads the count, then writes it: two read the same",
            "can another process come between your reading",
            """
def meet(store, address, world_size):
    number = int(store.get("count")) if store.check(["count"]) else 0
    store.set("count", str(number + 1))
    store.set(f"address/{number}", address)
    return number, [store.get(f"address/{other}").decode() for other in range(world_size)]
""",
        ),
        (
            "counts from one, and waits for a number that nobody has",
            "you wait for a number that nobody has",
            """
def meet(store, address, world_size):
    number = store.add("arrived", 1)
    store.set(f"address/{number}", address)
    return number, [store.get(f"address/{other}").decode() for other in range(world_size)]
""",
        ),
        (
            "counts from one, consistently",
            "What does the first `add` return?",
            """
def meet(store, address, world_size):
    number = store.add("arrived", 1)
    store.set(f"address/{number}", address)
    return number, [store.get(f"address/{other}").decode() for other in range(1, world_size + 1)]
""",
        ),
        (
            "does not wait for those who are late",
            "had returned before the last process came",
            """
def meet(store, address, world_size):
    import time
    number = store.add("arrived", 1) - 1
    store.set(f"address/{number}", address)
    time.sleep(0.1)
    keys = [f"address/{other}" for other in range(world_size)]
    return number, [store.get(key).decode() if store.check([key]) else "" for key in keys]
""",
        ),
        (
            "asks again and again",
            "Do you ask again and again",
            """
def meet(store, address, world_size):
    import time
    number = store.add("arrived", 1) - 1
    store.set(f"address/{number}", address)
    while store.add("arrived", 0) < world_size:
        time.sleep(0.01)
    return number, [store.get(f"address/{other}").decode() for other in range(world_size)]
""",
        ),
        (
            "uses the rank that strangers do not have",
            "numbers follow the order of arrival",
            """
def meet(store, address, world_size):
    import os
    number = int(os.environ["RANK"])
    store.set(f"address/{number}", address)
    return number, [store.get(f"address/{other}").decode() for other in range(world_size)]
""",
        ),
        (
            "puts its own address first",
            "in which order do you read them",
            """
def meet(store, address, world_size):
    number = store.add("arrived", 1) - 1
    store.set(f"address/{number}", address)
    others = [other for other in range(world_size) if other != number]
    return number, [address] + [store.get(f"address/{other}").decode() for other in others]
""",
        ),
    ],
    "exchange_both": [
        (
            "everyone sends first: a deadlock",
            "wait for each other",
            _exchange("""
dist.send(to_right, right)
dist.send(to_left, left)
dist.recv(from_left, left)
dist.recv(from_right, right)
"""),
        ),
        (
            "returns before the messages have come",
            "does the tensor hold the message yet",
            _exchange("""
import time
if rank == 0:
    time.sleep(0.2)
work = [dist.isend(to_right, right), dist.isend(to_left, left)]
dist.irecv(from_left, left)
dist.irecv(from_right, right)
from_left, from_right = from_left.clone(), from_right.clone()
"""),
        ),
        (
            "wrong when both neighbours are one rank",
            "Which one is received first?",
            _exchange("""
work = [dist.irecv(from_right, right), dist.irecv(from_left, left)]
work += [dist.isend(to_right, right), dist.isend(to_left, left)]
for one in work:
    one.wait()
"""),
        ),
        (
            "left and right mixed up",
            "it got something else",
            _exchange("""
work = [dist.irecv(from_left, right), dist.irecv(from_right, left)]
work += [dist.isend(to_left, left), dist.isend(to_right, right)]
for one in work:
    one.wait()
"""),
        ),
        (
            "no wrap-around: only right for an open chain",
            "had not returned",
            _exchange("""
left, right = rank - 1, rank + 1
work = [dist.irecv(from_left, left), dist.irecv(from_right, right)]
work += [dist.isend(to_right, right), dist.isend(to_left, left)]
for one in work:
    one.wait()
"""),
        ),
        (
            "one side after the other",
            "Can you start all of them",
            _exchange("""
sending = dist.isend(to_right, right)
dist.recv(from_left, left)
sending.wait()
sending = dist.isend(to_left, left)
dist.recv(from_right, right)
sending.wait()
"""),
        ),
        (
            "sends everything to everyone",
            "one message to each neighbour",
            _exchange("""
mine = torch.stack([to_left, to_right])
everyone = [torch.empty_like(mine) for _ in range(world_size)]
dist.all_gather(everyone, mine)
from_left, from_right = everyone[left][1], everyone[right][0]
"""),
        ),
    ],
    "tree_broadcast": [
        (
            "a star: the source serves all",
            "can pass it on",
            _tree("""
if rank == src:
    for other in range(world_size):
        if other != src:
            dist.send(tensor, other)
else:
    dist.recv(tensor, src)
"""),
        ),
        (
            "a chain",
            "can pass it on",
            _tree("""
me = (rank - src) % world_size
if me > 0:
    dist.recv(tensor, (rank - 1) % world_size)
if me < world_size - 1:
    dist.send(tensor, (rank + 1) % world_size)
"""),
        ),
        (
            "serves the leaves first",
            "can pass it on",
            _tree("""
me = (rank - src) % world_size
low = me & -me if me else 1 << (world_size - 1).bit_length()
if me:
    dist.recv(tensor, (me - low + src) % world_size)
distance = 1
while distance < low:
    if me + distance < world_size:
        dist.send(tensor, (me + distance + src) % world_size)
    distance *= 2
"""),
        ),
        (
            "only right for powers of two",
            "on 3 ranks",
            _tree("""
me = (rank - src) % world_size
distance = 1
while distance < world_size:
    if me < distance:
        dist.send(tensor, (me + distance + src) % world_size)
    elif me < 2 * distance:
        dist.recv(tensor, (me - distance + src) % world_size)
    distance *= 2
"""),
        ),
        (
            "takes rank 0 for the source, whatever src says",
            "should hold what rank",
            _tree("""
distance = 1
while distance < world_size:
    if rank < distance and rank + distance < world_size:
        dist.send(tensor, rank + distance)
    elif distance <= rank < 2 * distance:
        dist.recv(tensor, rank - distance)
    distance *= 2
"""),
        ),
        (
            "the source waits too: a deadlock",
            "wait for each other",
            _tree("""
me = (rank - src) % world_size
dist.recv(tensor, (rank - 1) % world_size)
if me < world_size - 1:
    dist.send(tensor, (rank + 1) % world_size)
"""),
        ),
        (
            "lets PyTorch do it",
            "build the broadcast yourself",
            _tree("dist.broadcast(tensor, src)"),
        ),
        (
            "one round too few",
            "Who sends to it, and in which round?",
            _tree("""
me = (rank - src) % world_size
distance = 1
while 2 * distance < world_size + 1:
    if me < distance and me + distance < world_size:
        dist.send(tensor, (me + distance + src) % world_size)
    elif distance <= me < 2 * distance:
        dist.recv(tensor, (me - distance + src) % world_size)
    distance *= 2
"""),
        ),
    ],
    "grid_groups": [
        (
            "only the members call new_group",
            "in the same order, its own or not",
            _grid("""
start = rank - rank % columns
row = dist.new_group(range(start, start + columns))
column = dist.new_group(range(rank % columns, world_size, columns))
return row, column
"""),
        ),
        (
            "keeps the last group instead of its own",
            "that it is a member of",
            _grid("""
for start in range(0, world_size, columns):
    row = dist.new_group(range(start, start + columns))
for start in range(columns):
    column = dist.new_group(range(start, world_size, columns))
return row, column
"""),
        ),
        (
            "one rank short in each row",
            "the ranks of its row are",
            _grid("""
for start in range(0, world_size, columns):
    group = dist.new_group(range(start, max(start + 1, start + columns - 1)))
    if start <= rank < start + columns:
        row = group if dist.get_rank(group) >= 0 else dist.group.WORLD
for start in range(columns):
    group = dist.new_group(range(start, world_size, columns))
    if rank % columns == start:
        column = group
return row, column
"""),
        ),
        (
            "column first",
            "The row comes first",
            _grid("""
mine = []
for start in range(columns):
    group = dist.new_group(range(start, world_size, columns))
    if rank % columns == start:
        mine.append(group)
for start in range(0, world_size, columns):
    group = dist.new_group(range(start, start + columns))
    if start <= rank < start + columns:
        mine.append(group)
return tuple(mine)
"""),
        ),
        (
            "right for square grids only",
            "on a grid of 2 x 3",
            _grid("""
rows = world_size // columns
mine = []
for start in range(rows):
    members = range(start * rows, start * rows + columns)
    group = dist.new_group(members)
    if rank in members:
        mine.append(group)
for start in range(columns):
    members = range(start, world_size, columns)
    group = dist.new_group(members)
    if rank in members:
        mine.append(group)
return mine[0], mine[-1]
"""),
        ),
        (
            "says nothing when the ranks do not fill the grid",
            "cannot fill rows of",
            """
def grid_groups(columns):
    import torch.distributed as dist
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = []
    rows = [range(start, min(start + columns, world_size)) for start in range(0, world_size, columns)]
    for members in rows + [range(start, world_size, columns) for start in range(min(columns, world_size))]:
        group = dist.new_group(members)
        if rank in members:
            mine.append(group)
    return mine[0], mine[1]
""",
        ),
    ],
}
