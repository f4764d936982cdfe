"""Small trainings that are saved rank by rank, killed and resumed, with a mistake or without: for diagnose_resume.

Each run is trained, saved and loaded: nothing of its record is made up. The ranks are parts of one process, which has
what fully_shard has: rows of each parameter, an optimizer of these rows, the mean of all ranks' gradients
(tests/course/test_diagnose_resume.py holds it to fully_shard on real ranks).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SHAPES = ((24, 10), (12, 24))  # 2, 3 and 4 ranks have equal numbers of rows
ALIKE = 12  # a batch has a multiple of so many tokens, so that 2, 3 and 4 ranks have as many each
SAVES = 3
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda rows: torch.optim.SGD(rows, lr=0.1, momentum=0.9),
    "AdamW": lambda rows: torch.optim.AdamW(rows, lr=0.01),
}
Norms = list[tuple[float, float]]  # of each rank's parameters and of its optimizer states
Log = dict[int, dict[str, float]]  # by step: tokens, loss
Record = tuple[Log, Log, dict[int, Norms], Norms]
Diagnosis = tuple[str, int | None]


class Job(NamedTuple):
    """What is drawn.

    ranks, then: how many ranks train before, and after
    every:       steps between saves
    start:       the step from which it is resumed
    odd:         the rank whose file is old
    order:       in which files are read where their order is wrong
    """

    ranks: int
    then: int
    every: int
    start: int
    odd: int
    order: tuple[int, ...]
    optimizer: str
    seed: int


class Ranks:
    """A model whose rows lie on some ranks, with an optimizer on each."""

    def __init__(self, weights: list[Tensor], ranks: int, optimizer: str) -> None:
        cut = [w.chunk(ranks) for w in weights]
        self.rows = [[nn.Parameter(w[rank].clone()) for w in cut] for rank in range(ranks)]
        self.optimizers = [OPTIMIZERS[optimizer](rows) for rows in self.rows]

    def step(self, x: Tensor, y: Tensor) -> float:
        """One step with a batch, of which each rank has a part; the loss."""
        ranks = len(self.rows)
        whole = [torch.cat(parts).detach() for parts in zip(*self.rows, strict=True)]
        sums, total = [torch.zeros_like(w) for w in whole], 0.0
        for own_x, own_y in zip(x.chunk(ranks), y.chunk(ranks), strict=True):
            gathered = [w.clone().requires_grad_() for w in whole]
            loss = loss_of(gathered, own_x, own_y)
            for so_far, own in zip(sums, torch.autograd.grad(loss, gathered), strict=True):
                so_far += own
            total += loss.item()
        for rank, (rows, optimizer) in enumerate(zip(self.rows, self.optimizers, strict=True)):
            for p, gradient in zip(rows, sums, strict=True):
                p.grad = gradient.chunk(ranks)[rank] / ranks
            optimizer.step()
        return total / ranks

    def save(self, dtype: torch.dtype = torch.float32) -> list[dict[str, Any]]:
        """A file of each rank: its rows, and its optimizer's states in that dtype."""
        return [
            {
                "rows": [p.detach().clone() for p in rows],
                "states": [
                    {name: as_dtype(value, dtype) for name, value in state.items()}
                    for state in optimizer.state_dict()["state"].values()
                ],
            }
            for rows, optimizer in zip(self.rows, self.optimizers, strict=True)
        ]

    def load_states(self, files: list[dict[str, Any]]) -> None:
        """Optimizer states from a file of each rank."""
        for optimizer, file in zip(self.optimizers, files, strict=True):
            groups = optimizer.state_dict()["param_groups"]
            states = {
                i: {k: v.clone() for k, v in state.items()}
                for i, state in enumerate(file["states"])
            }
            optimizer.load_state_dict({"state": states, "param_groups": groups})


def loss_of(weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Two layers and the mean cross-entropy. x: (tokens, features), y: (tokens,)."""
    return F.cross_entropy(torch.tanh(x @ weights[0].T) @ weights[1].T, y)


def as_dtype(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A copy; Adam's count of steps stays what it is."""
    return value.to(dtype).float().clone() if value.dim() else value.clone()


def for_ranks(files: list[dict[str, Any]], ranks: int) -> list[dict[str, Any]]:
    """What each of some ranks reads from the files of as many or of others, in their order."""
    if ranks == len(files):
        return files

    def cut(parts: list[Tensor]) -> list[Tensor]:
        return list(torch.cat(parts).chunk(ranks)) if parts[0].dim() else [parts[0]] * ranks

    number = range(len(SHAPES))
    rows = [cut([file["rows"][i] for file in files]) for i in number]
    states = [
        {name: cut([file["states"][i][name] for file in files]) for name in files[0]["states"][i]}
        for i in number
    ]
    return [
        {
            "rows": [r[rank] for r in rows],
            "states": [{k: v[rank] for k, v in state.items()} for state in states],
        }
        for rank in range(ranks)
    ]


def norms(files: list[dict[str, Any]]) -> Norms:
    """Of each file: the norm of its parameters, and that of its optimizer states."""

    def norm(tensors: list[Tensor]) -> float:
        return float(torch.cat([t.flatten().double() for t in tensors]).norm())

    return [
        (
            norm(file["rows"]),
            norm([t for state in file["states"] for t in state.values() if t.dim()]),
        )
        for file in files
    ]


def drawn(kind: str, turn: int, draw: Random) -> Job:
    """A job: on as many ranks as before, on others, or from the save before the last. An old file stays on its rank."""
    ranks, every = draw.choice((2, 3, 4)), draw.randint(3, 5)
    then = ranks
    if turn == 1 and kind != "old file":
        then = draw.choice([r for r in (2, 3, 4) if r != ranks])
    start = every * (SAVES - 1 if turn == 2 else SAVES)
    order = tuple(range(ranks))
    while order == tuple(range(ranks)):
        order = tuple(draw.sample(range(ranks), ranks))
    optimizer = draw.choice(list(OPTIMIZERS))
    return Job(
        ranks, then, every, start, draw.randrange(ranks), order, optimizer, draw.getrandbits(32)
    )


def batch(job: Job, step: int) -> tuple[Tensor, Tensor]:
    """A step's tokens: their features, and the word that follows each."""
    make = torch.Generator().manual_seed(job.seed + step)
    tokens = ALIKE * (2 + int(torch.randint(6, (1,), generator=make)))
    x = torch.randn(tokens, SHAPES[0][1], generator=make)
    teacher = torch.randn(
        SHAPES[0][1], SHAPES[1][0], generator=torch.Generator().manual_seed(job.seed)
    )
    noise = torch.randn(tokens, SHAPES[1][0], generator=make)
    return x, (x @ teacher + noise).argmax(1)


def start_of(job: Job) -> list[Tensor]:
    """The weights before the first step."""
    make = torch.Generator().manual_seed(job.seed)
    return [torch.randn(shape, generator=make) / shape[1] ** 0.5 for shape in SHAPES]


def resumed(kind: str, job: Job) -> Record:
    """The record of a run, of which one thing goes wrong when it is resumed."""
    model = Ranks(start_of(job), job.ranks, job.optimizer)
    first: Log = {}
    written, files = {}, {}
    for step in range(SAVES * job.every + 3):
        if step and step % job.every == 0 and step <= SAVES * job.every:
            written[step] = norms(model.save())
            files[step] = model.save(torch.bfloat16 if kind == "rounded" else torch.float32)
        x, y = batch(job, step)
        first[step] = {"tokens": len(x), "loss": model.step(x, y)}
    found = list(files[job.start])
    if kind == "old file":
        found[job.odd] = files[job.start - job.every][job.odd]
    if kind == "wrong order":
        found = [found[i] for i in job.order]
    found = for_ranks(found, job.then)
    weights = [torch.cat(parts) for parts in zip(*(file["rows"] for file in found), strict=True)]
    model = Ranks(weights, job.then, job.optimizer)
    if kind != "states lost":
        model.load_states(found)
    second: Log = {}
    for step in range(job.start, job.start + job.every + 1):
        x, y = batch(job, step - job.start if kind == "data again" else step)
        second[step] = {"tokens": len(x), "loss": model.step(x, y)}
    return first, second, written, norms(found)


def run_of(kind: str, turn: int, draw: Random) -> tuple[Record, Diagnosis]:
    """A run and what went wrong, drawn until its record shows it: the error of rounded numbers may cancel in a norm."""
    while True:
        job = drawn(kind, turn, draw)
        record = resumed(kind, job)
        if shows(kind, job, record):
            return record, (kind, job.odd if kind == "old file" else None)


def shows(kind: str, job: Job, record: Record) -> bool:
    """Whether a mistake is far from rounding, which is 1e-7 in a loss and less in a norm."""
    first, second, written, read = record

    def apart(i: int) -> list[float]:
        """Of the parameters or the states: how far all ranks' norm is off, then each rank's."""
        pairs = [[n[i] for n in read], [n[i] for n in written[job.start]]]
        off = [relative(*(sum(x * x for x in one) ** 0.5 for one in pairs))]
        return off + list(map(relative, *pairs)) if job.then == job.ranks else off

    both = [step for step in second if step in first]
    losses = [relative(first[step]["loss"], second[step]["loss"]) for step in both]
    if kind == "old file":
        return min(apart(i)[1 + job.odd] for i in (0, 1)) > 1e-4
    if kind == "rounded":
        return min(apart(1)) > 1e-5
    if kind == "data again":
        return any(first[step]["tokens"] != second[step]["tokens"] for step in both)
    return kind == "healthy" or losses[0 if kind == "wrong order" else 1] > 1e-4


def relative(a: float, b: float) -> float:
    """How far two numbers are apart, as a part of the larger one."""
    return abs(a - b) / max(abs(a), abs(b))
