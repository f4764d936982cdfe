"""Answers to code_gradients: see test_exercises.py."""

_SUM = "    return sum(factors[shard] * gradient_of(shard) for shard in shards)\n"
_SHARDS = "    shards = [(rank + i) % size for i in range(spare + 1)]\n"
_SOLVED = (
    "            factors[rank, others] = torch.linalg.solve(across[:, others], -across[:, first])\n"
)
_CENTRED = "    across -= across.mean(1, keepdim=True)\n"
_WEIGHTS = '    weights = torch.linalg.lstsq(rows.T, ones, driver="gelsd").solution.flatten()\n'
_SEED = "torch.Generator().manual_seed(0)"

_LESSON = """
def code_gradients(gradient_of, rank, size, spare):
    factors = {0: {0: 0.5, 1: 1.0}, 1: {1: 1.0, 2: -1.0}, 2: {0: 0.5, 2: 1.0}}[rank]
    return sum(factor * gradient_of(shard) for shard, factor in factors.items())


def whole_gradient(arrived, size, spare):
    weights = {(0, 1): (2, -1), (0, 2): (1, 1), (1, 2): (1, 2), (0, 1, 2): (1, 0, 1)}[tuple(sorted(arrived))]
    return sum(weight * arrived[rank] for weight, rank in zip(weights, sorted(arrived)))
"""

_KEPT = """
HELD = {}


def code_gradients(gradient_of, rank, size, spare):
    for shard in [(rank + i) % size for i in range(spare + 1)]:
        HELD[shard] = gradient_of(shard)
    return HELD[rank]


def whole_gradient(arrived, size, spare):
    held = HELD | arrived
    return sum(held[shard] for shard in range(size))
"""

_POLYNOMIALS = '''
import torch


def rows(size, spare):
    """Values of polynomials of degree size - spare - 1: each rank's is zero at the shards that it does not compute."""
    points = torch.tensor([(0.618034 * i) % 1 for i in range(size)], dtype=torch.double)
    table = torch.zeros(size, size, dtype=torch.double)
    for rank in range(size):
        own = {(rank - i) % size for i in range(spare + 1)}
        for shard in own:
            away = [points[shard] - points[other] for other in range(size) if other not in own]
            table[rank, shard] = torch.stack(away).prod() if away else 1.0
    return table


def code_gradients(gradient_of, rank, size, spare):
    total = 0
    for shard, factor in enumerate(rows(size, spare)[rank]):
        if factor != 0:
            total = total + factor * gradient_of(shard)
    return total


def whole_gradient(arrived, size, spare):
    left = list(arrived)[: size - spare]
    table = rows(size, spare)[left]
    # The values at as many shards decide on a polynomial.
    weights = torch.linalg.solve(table[:, : size - spare].T, torch.ones(size - spare, dtype=torch.double))
    return torch.stack([arrived[rank] for rank in left]).T @ weights
'''

_COPIES = '''
import torch


def code_gradients(gradient_of, rank, size, spare):
    """Where groups of spare + 1 ranks come out even, each group has its shards; else by factors."""
    if size % (spare + 1) == 0:
        first = rank // (spare + 1) * (spare + 1)
        return torch.stack([gradient_of(shard) for shard in range(first, first + spare + 1)]).sum(0)
    own = sorted((rank + i) % size for i in range(spare + 1))
    return torch.stack([matrix(size, spare)[rank, shard] * gradient_of(shard) for shard in own]).sum(0)


def whole_gradient(arrived, size, spare):
    if size % (spare + 1) == 0:
        one_of_each = {rank // (spare + 1): vector for rank, vector in arrived.items()}
        return torch.stack(list(one_of_each.values())).sum(0)
    left = matrix(size, spare)[list(arrived)]
    weights = torch.linalg.pinv(left.T) @ torch.ones(size, dtype=torch.double)
    return torch.einsum("r,rn->n", weights, torch.stack(list(arrived.values())))


def matrix(size, spare):
    torch.manual_seed(5)
    across = torch.randn(spare, size, dtype=torch.double)
    across[:, -1] = -across[:, :-1].sum(1)
    table = torch.zeros(size, size, dtype=torch.double)
    for rank in range(size):
        own = sorted((rank + i) % size for i in range(spare + 1))
        # Of spare rows and one column more, what is orthogonal to all.
        table[rank, own] = torch.linalg.svd(across[:, own]).Vh[-1]
    return table
'''

MUTANTS = [
    ("factors by chance", "is there a solution for each", ((_SOLVED, "            factors[rank, others] = across[0, others]\n"),)),
    ("the lesson's factors", "raised KeyError", _LESSON),
    (
        "copies without factors",
        "is there a solution for each",
        ((_SOLVED, "            factors[rank, others] = 1\n"),),
    ),
    (
        "what is missing is scaled up",
        "is there a solution for each",
        (
            (_SOLVED, "            factors[rank, others] = 1\n"),
            (_WEIGHTS, "    weights = torch.full((len(ranks),), size / len(ranks) / (spare + 1), dtype=torch.double)\n"),
        ),
    ),
    (
        "one shard each, the rest scaled up",
        "is there a solution for each",
        (
            (_SHARDS, "    shards = [rank]\n"),
            (_SUM, "    return gradient_of(rank)\n"),
            (_WEIGHTS, "    weights = torch.full((len(ranks),), size / len(ranks), dtype=torch.double)\n"),
        ),
    ),
    ("the sum is not among them", "What do the vectors of all ranks add up to", ((_CENTRED, ""),)),
    (
        "other factors on each rank",
        "each call find the same factors",
        ((f"generator={_SEED}", "generator=None"),),
    ),
    ("all gradients are sent", "What could be added up before it is sent", ((_SUM, "    return torch.stack([gradient_of(shard) for shard in shards])\n"),)),
    (
        "all shards on each rank",
        "On how many ranks does a shard have to be",
        ((_SUM, "    return sum(gradient_of(shard) for shard in range(size))\n"), (_WEIGHTS, "    weights = torch.full((len(ranks),), 1 / len(ranks), dtype=torch.double)\n")),
    ),
    (
        "the function that is not counted, out of the one that is",
        "On how many ranks does a shard have to be",
        (
            (_SUM, '    cells = getattr(gradient_of, "__clo" + "sure__")\n    inside = [c.cell_contents for c in cells if callable(c.cell_contents)]\n    return sum((inside or [gradient_of])[0](shard) for shard in range(size))\n'),
            (_WEIGHTS, "    weights = torch.full((len(ranks),), 1 / len(ranks), dtype=torch.double)\n"),
        ),
    ),
    ("in single precision", "is off by", ((_SUM, "    return sum((factors[shard] * gradient_of(shard)).float() for shard in shards).double()\n"),)),
    ("what was computed is kept", "raised KeyError", _KEPT),
]  # fmt: skip
NAMED = "factors by chance"

NOTHING = [
    (
        "none",
        "\ndef code_gradients(gradient_of, rank, size, spare):\n    return None\n\n\n"
        "def whole_gradient(arrived, size, spare):\n    return None\n",
    ),
    (
        "its own shard",
        "\ndef code_gradients(gradient_of, rank, size, spare):\n    return gradient_of(rank)\n\n\n"
        "def whole_gradient(arrived, size, spare):\n    return arrived[min(arrived)]\n",
    ),
]

ACCEPTED = [
    ("polynomials", _POLYNOMIALS),
    ("groups of copies, and a null space", _COPIES),
]
