"""Answers to mean_beside_servers: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_HEAD = "\ndef mean_beside_servers(x, workers):\n"
_OWNER = "Which part does each worker own"
_BACK = "Does anything go back before all of a part has come"
_MIX = "    server = 2 * (n - 1) / (n * n + (p - n) * (n - 2))\n"
_COUNT = "    parts = 16\n"

# PyTorch's own, which the servers join with zeros.
_READY = (
    _HEAD
    + "    x = x if dist.get_rank() < workers else torch.zeros_like(x)\n    dist.all_reduce(x)\n"
)

MUTANTS = [
    ("all-reduce of all ranks", _OWNER, _READY + "    return x / workers\n"),
    ("all-reduce, divided by all ranks", "which of them have a gradient", _READY + "    return x / dist.get_world_size()\n"),
    ("the sum", "by how many is it divided", ((" = total / n\n", " = total\n"),)),
    ("a server's own numbers are added", "was each worker's added once", (("total = chunk.clone() if rank < n else torch.zeros_like(chunk)", "total = chunk.clone()"),)),
    ("everything at the servers", _OWNER, ((_MIX, "    server = 1 / (p - n)\n"),)),
    ("nothing at the servers", _OWNER, ((_MIX, "    server = 0.0\n"),)),
    ("the same part for all", _OWNER, ((_MIX, "    server = 1 / p\n"),)),
    ("the mix for one server", _OWNER, ((_MIX, _MIX.replace("(p - n)", "1")),)),
    ("whole parts, one message each", _BACK, ((_COUNT, "    parts = 1\n"),)),
    ("in two halves", _BACK, ((_COUNT, "    parts = 2\n"),)),
    ("all begin with rank 0", _BACK, ((_COUNT, "    parts = 4\n"), ("others = [(rank + step) % p for step in range(1, p)]", "others = [r for r in range(p) if r != rank]"))),
    (
        "nothing goes back before all has come",
        _BACK,
        (("    for i, chunk in enumerate(chunks[rank]):\n        total", "    for work in arriving.values():\n        work.wait()\n    for i, chunk in enumerate(chunks[rank]):\n        total"),),
    ),
    ("ready-made", "asks you to write that yourself", "from dtcourse.communication_scheduling import PushPull\n" + _HEAD + "    return PushPull(1)(x)\n"),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """import torch


def mean_beside_servers(x, workers):
    return torch.stack(everyones(x)[:workers]).mean(0)
""",
    ),
]  # fmt: skip

ACCEPTED = [
    ("more chunks", ((_COUNT, "    parts = 22\n"),)),
    (
        "servers' chunks first",
        (
            (
                "others = [(rank + step) % p for step in range(1, p)]",
                "others = [(rank + step) % p for step in range(1, p)]\n"
                "    others.sort(key=lambda r: r < n)",
            ),
        ),
    ),
]

NOTHING = [
    ("its own gradient", _HEAD + "    return x\n"),
    ("nothing", _HEAD + "    return None\n"),
]
