"""Plausible wrong answers to lesson 04's exercises: (name, words of the sentence that rejects it, code)."""

_HOOK = """
def ring_hook(state, bucket):
    gradients = bucket.buffer()
    ring_all_reduce(gradients)
    gradients /= dist.get_world_size()
    future = torch.futures.Future()
    future.set_result(gradients)
    return future
"""

_RING = """
def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    blocks = tensor.tensor_split(size)

    def exchange(give, take):
        sending = dist.isend(give, right) if len(give) else None
        if len(take):
            dist.recv(take, left)
        if sending:
            sending.wait()

    for step in range(size - 1):
        mine = blocks[(rank - step - 2) % size]
        arrived = torch.empty_like(mine)
        exchange(blocks[(rank - step - 1) % size], arrived)
        mine += arrived
    for step in range(size - 1):
        exchange(blocks[(rank - step) % size], blocks[(rank - step - 1) % size])
"""

_THROUGH_ROOT = """
def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank:
        dist.send(tensor, 0)
        dist.recv(tensor, 0)
        return
    arrived = torch.empty_like(tensor)
    for other in range(1, size):
        dist.recv(arrived, other)
        tensor += arrived
    for other in range(1, size):
        dist.send(tensor, other)
"""

_WHOLE_VECTOR = """
def ring_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    passing, arrived = tensor.clone(), torch.empty_like(tensor)
    for _ in range(size - 1):
        sending = dist.isend(passing, (rank + 1) % size)
        dist.recv(arrived, (rank - 1) % size)
        sending.wait()
        tensor += arrived
        passing.copy_(arrived)
"""

_TORCHS = """
def ring_all_reduce(tensor):
    dist.all_reduce(tensor)
"""

_SECONDS = """
def seconds(algorithm, nbytes, ranks, alpha, beta):
    rounds = math.ceil(math.log2(ranks))
    if algorithm == "ring":
        return 2 * (ranks - 1) * (alpha + nbytes / ranks * beta)
    if algorithm == "tree":
        return 2 * rounds * (alpha + nbytes * beta)
    if algorithm == "doubling" and ranks == 1 << rounds:
        return rounds * (alpha + nbytes * beta)
    raise ValueError(algorithm)
"""

_CHOOSE = """
def choose(nbytes, ranks, alpha, beta):
    names = ["ring", "tree"] + (["doubling"] if ranks & (ranks - 1) == 0 else [])
    return min(names, key=lambda name: seconds(name, nbytes, ranks, alpha, beta))
"""

_CROSSOVER = """
def crossover(ranks, alpha, beta):
    return _meets(ranks, alpha, beta, ["tree"] + (["doubling"] if ranks & (ranks - 1) == 0 else []))


def _meets(ranks, alpha, beta, others):
    rounds = math.ceil(math.log2(ranks))
    sizes = [0.0]
    for name in others:
        factor = {"tree": 2 * rounds, "doubling": rounds}[name]
        late, saved = 2 * (ranks - 1) - factor, factor - 2 * (ranks - 1) / ranks
        if late > 0:
            sizes.append(late * alpha / (saved * beta) if saved else math.inf)
    return max(sizes)
"""

_DOUBLING = """
def doubling_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    q = 1 << (size.bit_length() - 1)
    if rank >= q:
        dist.send(tensor, rank - q)
        dist.recv(tensor, rank - q)
        return
    arrived = torch.empty_like(tensor)
    if rank + q < size:
        dist.recv(arrived, rank + q)
        tensor += arrived
    distance = 1
    while distance < q:
        sending = dist.isend(tensor, rank ^ distance)
        dist.recv(arrived, rank ^ distance)
        sending.wait()
        tensor += arrived
        distance *= 2
    if rank + q < size:
        dist.send(tensor, rank + q)
"""


def _changed(code: str, old: str, new: str) -> str:
    assert code.count(old) == 1, (code.count(old), old)
    return code.replace(old, new)


MUTANTS = {
    "ring_under_ddp": [
        ("all through a root", "Does one rank do the work of all", _THROUGH_ROOT + _HOOK),
        ("sends the whole vector", "more than one block go in a step", _WHOLE_VECTOR + _HOOK),
        ("calls PyTorch's all-reduce", "It calls all_reduce", _TORCHS + _HOOK),
        (
            "the sum for the mean",
            "times too far in each step",
            _RING + _changed(_HOOK, "    gradients /= dist.get_world_size()\n", ""),
        ),
        (
            "off by one block",
            "which block leaves a rank",
            _changed(
                _RING,
                "exchange(blocks[(rank - step) % size], blocks[(rank - step - 1) % size])",
                "exchange(blocks[(rank - step + 1) % size], blocks[(rank - step) % size])",
            )
            + _HOOK,
        ),
        (
            "right for four ranks alone",
            "on 2 ranks",
            _RING.replace("range(size - 1)", "range(3)") + _HOOK,
        ),
        (
            "blocking sends",
            "wait",
            _changed(_RING, "sending = dist.isend(give, right)", "sending = dist.send(give, right)")
            + _HOOK,
        ),
        (
            "blocks of one length, the rest forgotten",
            "are all blocks of one length",
            _changed(
                _RING,
                "blocks = tensor.tensor_split(size)",
                "blocks = tensor[: len(tensor) // size * size].tensor_split(size)",
            )
            + _HOOK,
        ),
    ],
    "choose_algorithm": [
        (
            "logarithm rounded down",
            "How many rounds has a tree",
            _changed(_SECONDS, "math.ceil(math.log2(ranks))", "int(math.log2(ranks))")
            + _CHOOSE
            + _CROSSOVER,
        ),
        (
            "chooses by size alone",
            "compare the times of this very call",
            _SECONDS
            + """
def choose(nbytes, ranks, alpha, beta):
    if nbytes > 1_000_000:
        return "ring"
    return "tree" if ranks & (ranks - 1) else "doubling"
"""
            + _CROSSOVER,
        ),
        (
            "doubling where it cannot be used",
            "what can be used there",
            _SECONDS
            + """
def choose(nbytes, ranks, alpha, beta):
    rounds = math.log2(ranks)
    times = {name: seconds(name, nbytes, ranks, alpha, beta) for name in ("ring", "tree")}
    times["doubling"] = rounds * (alpha + nbytes * beta)
    return min(times, key=times.get)
"""
            + _CROSSOVER,
        ),
        (
            "the crossover with the tree alone",
            "last rival",
            _SECONDS
            + _CHOOSE
            + _changed(
                _CROSSOVER,
                '["tree"] + (["doubling"] if ranks & (ranks - 1) == 0 else [])',
                '["tree"]',
            ),
        ),
    ],
    "recursive_doubling": [
        (
            "does not wait for the others",
            "have the sum",
            _changed(
                _DOUBLING,
                "    if rank + q < size:\n        dist.send(tensor, rank + q)\n",
                "    if rank + q < size:\n        dist.send(arrived, rank + q)\n",
            ),
        ),
        (
            "partners 1, 2, 3, ... away",
            "is any of them in it twice",
            _changed(_DOUBLING, "distance *= 2", "distance += 1"),
        ),
        (
            "passes on to the right, whose sum has another order",
            "not the same bits",
            _DOUBLING.replace(
                "isend(tensor, rank ^ distance)", "isend(tensor, (rank + distance) % q)"
            ).replace("recv(arrived, rank ^ distance)", "recv(arrived, (rank - distance) % q)"),
        ),
        (
            "blocking sends",
            "wait",
            _changed(
                _changed(_DOUBLING, "sending = dist.isend", "dist.send"),
                "        sending.wait()\n",
                "",
            ),
        ),
        (
            "everyone sends to everyone",
            "how many rounds is that",
            """
def doubling_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    vectors = [torch.empty_like(tensor) for _ in range(size)]
    vectors[rank].copy_(tensor)
    sending = [dist.isend(vectors[rank], other) for other in range(size) if other != rank]
    for other in range(size):
        if other != rank:
            dist.recv(vectors[other], other)
    for work in sending:
        work.wait()
    tensor.copy_(torch.stack(vectors).sum(0))
""",
        ),
        (
            "the same sum in another order on each rank",
            "not the same bits",
            """
def doubling_all_reduce(tensor):
    rank, size = dist.get_rank(), dist.get_world_size()
    passing, arrived = tensor.clone(), torch.empty_like(tensor)
    for _ in range(size - 1):
        sending = dist.isend(passing, (rank + 1) % size)
        dist.recv(arrived, (rank - 1) % size)
        sending.wait()
        tensor += arrived
        passing.copy_(arrived)
""",
        ),
    ],
}
