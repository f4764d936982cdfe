"""Which pipeline is broken, and how? Timelines from the simulator, gradients from real backwards."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dtcourse.course.judging import Answer, Exercise, call_each, require
from dtcourse.plural import plural

DIAGNOSIS = Exercise(
    "diagnose",
    lesson="17",
    title="Which pipeline is broken, and how?",
    takes=("diagnose",),
    target="the right word for each of 34 steps, on 2 to 6 ranks with 1 to 8 micro-batches",
    forbidden=("dtcourse.verify",),
)

HEALTHY, SUMMED, TIED, STATISTICS, ONE_AT_A_TIME = (
    "healthy",
    "summed",
    "tied copy",
    "batch statistics",
    "one at a time",
)
Gradients = dict[str, torch.Tensor]
TOKENS, WIDTH, PER_MICRO_BATCH = 6, 4, 4


@dataclass
class Step:
    """What a student is given, and the right word. schedule: the name, for the sentence."""

    word: str
    ranks: int
    micro_batches: int
    schedule: str
    timeline: list[tuple[int, str, float, float]]
    gradients: Gradients
    expected: Gradients
    tied: tuple[str, ...]


class _Pipelined(nn.Module):
    """An embedding, a layer per rank, an output layer; both tables have the same values."""

    def __init__(self, ranks: int, statistics: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(WIDTH, WIDTH) for _ in range(ranks)]
        if statistics:
            layers.insert(1, nn.BatchNorm1d(WIDTH))
        self.first, self.last = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.layers = nn.Sequential(*layers)
        with torch.no_grad():
            self.last.weight.copy_(self.first.weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.layers(self.first(tokens))))


def _gradients(
    model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor], m: int, tied: bool, factor: float
) -> Gradients:
    """Of m micro-batches, each weighted by factor / m; with the sum of both tables' for each of them,
    if they are tied.
    """
    model.zero_grad()
    for tokens, target in zip(*(t.chunk(m) for t in batch), strict=True):
        (F.cross_entropy(model(tokens), target) * factor / m).backward()
    found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    if tied:
        both = found["first.weight"] + found["last.weight"]
        found["first.weight"], found["last.weight"] = both, both.clone()
    return found


def _timeline(schedule: Any) -> list[tuple[int, str, float, float]]:
    from dtcourse.pipeline_parallel.simulate import Times, simulate

    forward = random.uniform(0.01, 0.02)
    times = Times(
        forward, forward, random.uniform(0.5, 1.5) * forward, transfer=random.choice((0, 1e-3))
    )
    rows = []
    for event in simulate(schedule, times).timeline:
        action = event.name.lstrip("0123456789")  # "2F0" without its stage
        rows.append((event.rank, action, event.start, event.end))
    return rows


def _step(word: str, m: int, tied: bool, ranks: int | None = None, schedule: str = "GPipe") -> Step:
    from dtcourse.pipeline_parallel import schedules

    ranks = ranks or random.randint(2, 6)
    make = {"GPipe": schedules.gpipe, "1F1B": schedules.one_f_one_b}[schedule]
    if word == ONE_AT_A_TIME:
        make = schedules.sequential
    statistics = word == STATISTICS
    model = _Pipelined(ranks, statistics)
    samples = (PER_MICRO_BATCH * m,)
    batch = torch.randint(TOKENS, samples), torch.randint(TOKENS, samples)
    expected = _gradients(model, batch, 1, tied, 1)
    gradients = _gradients(model, batch, m, tied and word != TIED, m if word == SUMMED else 1)
    for gradient in gradients.values():
        # another order of sums
        gradient += 1e-6 * gradient.abs().max() * torch.randn_like(gradient)
    names = ("first.weight", "last.weight") if tied else ()
    return Step(word, ranks, m, schedule, _timeline(make(ranks, m)), gradients, expected, names)


def _ask(answer: Answer, steps: list[Step], hint: str) -> None:
    given = [(s.timeline, s.gradients, s.expected, s.tied) for s in steps]
    for step, said in zip(steps, call_each(answer, given, shuffled=True), strict=True):
        require(
            said == step.word,
            f"{plural(step.ranks, 'rank')}, {plural(step.micro_batches, 'micro-batch', 'micro-batches')}: you say "
            f"{said!r}, and the step is {step.word!r}. {hint}",
        )


def _some(
    word: str, counts: tuple[int, ...], tied: bool = False, schedule: str = "GPipe"
) -> list[Step]:
    return [_step(word, m, tied, schedule=schedule) for m in counts]


@DIAGNOSIS.check("gradients: a factor, or another direction", points=3, needs=("check_healthy",))
def check_gradients(answer: Answer) -> None:
    """Summed, and batch statistics."""
    steps = _some(SUMMED, (2, 3, 4, 8)) + _some(STATISTICS, (2, 4, 8)) + _some(HEALTHY, (3,))
    hint = "Is there one factor for all parameters, and which one does a sum of m means make?"
    _ask(answer, steps, hint)


@DIAGNOSIS.check("one weight on two stages", points=2, needs=("check_healthy",))
def check_tied(answer: Answer) -> None:
    """Only the copies are wrong; and copies that are right, or wrong as all others are."""
    hint = "Which parameters are wrong: all of them, or the copies alone? And are there copies that are right?"
    steps = _some(TIED, (1, 2, 4, 8), tied=True) + _some(STATISTICS, (2, 5), tied=True)
    _ask(
        answer, steps + _some(HEALTHY, (4, 2, 6), tied=True) + _some(SUMMED, (3,), tied=True), hint
    )


@DIAGNOSIS.check("a timeline in which nothing overlaps", points=2, needs=("check_healthy",))
def check_timelines(answer: Answer) -> None:
    """One micro-batch at a time, against GPipe with a large bubble."""
    hint = "Do two ranks ever work at the same time? A large bubble is no fault."
    steps = _some(ONE_AT_A_TIME, (2, 3, 4, 8)) + _some(HEALTHY, (2, 2, 3, 8))
    _ask(answer, [*steps, _step(HEALTHY, 2, tied=False, ranks=6)], hint)


@DIAGNOSIS.check("healthy is healthy", points=1, needs=("check_gradients",))
def check_healthy(answer: Answer) -> None:
    """Rounding, another schedule, one micro-batch."""
    hint = "Rounding of a millionth, 1F1B's order, or one micro-batch alone is no fault."
    steps = _some(HEALTHY, (1, 1, 2, 4)) + _some(HEALTHY, (2, 4, 8), schedule="1F1B")
    _ask(answer, steps, hint)
