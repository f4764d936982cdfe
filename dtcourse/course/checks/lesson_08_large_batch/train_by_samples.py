"""Training that counts samples: the ranks' micro-batches, and the ranks themselves, change in the middle of a run."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Each, Exercise, require
from dtcourse.plural import plural

SAMPLES = Exercise(
    "train_by_samples",
    lesson="08",
    title="A run whose batch and ranks change",
    takes=("train_by_samples",),
    target="weights to 1e-12 of one process's on whole batches, on 1 to 4 ranks and resumed on others; 1 collective "
    "call per step, of the gradient and 16 bytes",
    forbidden=("torch.optim.lr_scheduler", "dtcourse.large_batch", "dtcourse.data_parallel", "dtcourse.parameters"),
    watched=("torch.optim.lr_scheduler", "dtcourse.large_batch", "dtcourse.data_parallel", "dtcourse.parameters"),
)  # fmt: skip
Micro = tuple[Tensor, Tensor]  # x (n, features), y (n,)
Step = list[list[Micro]]  # one optimizer step: by rank, its micro-batches
Settings = dict[str, float]
Sizes = list[list[list[int]]]  # by step, by rank, of each micro-batch


def loss_of(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The mean over these samples."""
    return (torch.tanh(x @ weight) - y).square().mean()


def _trained(
    train: Any, weight: Tensor, state: Any, mine: list[list[Micro]], settings: Settings
) -> tuple[Tensor, Any]:
    weight = weight.clone()
    state = train(weight, state, mine, loss_of, **settings)
    return weight, state


def reference(
    weight: Tensor, phases: list[list[Step]], settings: Settings
) -> tuple[Tensor, list[float]]:
    """The weights after all phases, by one process on whole batches, and each step's learning rate."""
    weight, seen, rates = weight.clone(), 0, []
    velocity = torch.zeros_like(weight)
    s = settings
    for step in [step for phase in phases for step in phase]:
        whole = [micro for rank in step for micro in rank]
        batch = sum(len(y) for _, y in whole)
        if not batch:
            continue
        x, y = (torch.cat(parts) for parts in zip(*whole, strict=True))
        free = weight.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss_of(free, x, y), free)
        peak = s["base_lr"] * batch / s["base_batch"]
        if seen < s["warmup"]:
            rate = s["base_lr"] + (peak - s["base_lr"]) * seen / s["warmup"]
        else:
            done = min(1.0, (seen - s["warmup"]) / (s["total"] - s["warmup"]))
            rate = peak * (1 + math.cos(math.pi * done)) / 2
        velocity = s["momentum"] * velocity + gradient
        weight = weight - rate * velocity
        seen += batch
        rates.append(rate)
    return weight, rates


def _steps(sizes: Sizes, features: int = 4) -> list[Step]:
    """Random samples."""

    def micro(number: int) -> Micro:
        return torch.randn(number, features, dtype=torch.double), torch.randn(number).double()

    return [[[micro(number) for number in rank] for rank in step] for step in sizes]


def _own(steps: list[Step]) -> Each:
    """Of each rank, step by step."""
    return Each([list(own) for own in zip(*steps, strict=True)])


def _settings(**changed: float) -> Settings:
    usual = {"base_lr": 0.05, "base_batch": 8, "warmup": 0, "total": 10**9, "momentum": 0.0}
    return usual | changed


def _ask(answer: Answer, phases: list[list[Step]], settings: Settings, hint: str) -> None:
    """Each phase on as many ranks as its steps have, resumed with what rank 0, or the last rank, gave back."""
    start = weight = torch.randn(4, dtype=torch.double)
    state = None
    for number, steps in enumerate(phases):
        ranks = len(steps[0])
        run = answer.run(_trained, ranks, weight, state, _own(steps), settings, timeout=8.0)
        right, rates = reference(start, phases[: number + 1], settings)
        for rank in range(ranks):
            off = (run[rank][0] - right).nan_to_num(math.inf).abs().max().item()
            sizes = [[[len(y) for _, y in mine] for mine in step] for step in steps]
            resumed = f", resumed from {len(phases[number - 1][0])}" if number else ""
            require(
                off <= 1e-12 * (1 + right.abs().max().item()),
                f"On {plural(ranks, 'rank')}{resumed}, with micro-batches of {sizes[-3:]} (the last steps, by rank), "
                f"rank {rank}'s weights are up to {off:.2g} off; the last learning rate is {rates[-1]:.6g}. {hint}",
            )
        weight, state = run[number % 2 and ranks - 1]


@SAMPLES.check("the mean over all samples, whoever has them", points=3)
def check_mean(answer: Answer) -> None:
    """Equal parts, then unequal ones, then a rank that has none; one learning rate throughout."""
    hint = "How many samples does each micro-batch stand for, and of how many samples is the step's mean?"
    parts: Sizes = [[[4]], [[2], [2]], [[4, 2], [1]], [[3], [1, 1], [5, 2]], [[2, 3], [], [1]]]
    for sizes in parts:
        batch = sum(map(sum, sizes))
        _ask(answer, [_steps([sizes])], _settings(base_batch=batch), hint)


@SAMPLES.check("the learning rate of the batch that it is now", points=3, needs=("check_mean",))
def check_rate(answer: Answer) -> None:
    """No warm-up first; then with it, while the batch changes from step to step; then past the end."""
    sizes: Sizes = [[[4], [4]], [[8, 8], [8, 2]], [[1], []], [[16], [16, 16]], [[2], [3]]]
    _ask(
        answer,
        [_steps(sizes[:1])],
        _settings(base_batch=2),
        "The linear rule: by what is this batch, of all ranks, larger than base_batch?",
    )
    _ask(
        answer,
        [_steps(sizes)],
        _settings(base_batch=4),
        "The batch changes from step to step. Which one does the peak belong to?",
    )
    _ask(
        answer,
        [_steps(sizes[:3])],
        _settings(base_batch=2, warmup=60, total=1000),
        "In the warm-up the learning rate goes from base_lr to the peak, with the samples that were seen before this "
        "step.",
    )
    _ask(
        answer,
        [_steps(sizes)],
        _settings(base_batch=2, warmup=10, total=150),
        "After the warm-up comes the cosine, over the samples that are left after it.",
    )
    _ask(
        answer,
        [_steps(sizes)],
        _settings(base_batch=2, warmup=3, total=20),
        "Beyond `total` samples the learning rate is 0; a cosine that goes on comes up again.",
    )


@SAMPLES.check("resumed on another number of ranks", points=4, needs=("check_rate",))
def check_resumed(answer: Answer) -> None:
    """From 2 to 3 ranks, to 1, to 4; with other batches; in the warm-up and after it; the state is any rank's."""
    two = _steps([[[4], [4]], [[2, 2], [1]]])
    three = _steps([[[4, 4], [1], [2]], [[8], [8], [3]]])
    one, four = _steps([[[9]]]), _steps([[[2], [2], [], [5]], [[1], [1], [1], [1]]])
    for momentum, hint in (
        (
            0.0,
            "What does a resumed run need to know of the one before: steps, or samples? And of how many ranks?",
        ),
        (0.9, "Without momentum it is right. What of the optimizer has to travel in the state?"),
    ):
        settings = _settings(warmup=25, total=90, momentum=momentum)
        for phases in ([two, three], [three, two], [two, one, four, three]):
            _ask(answer, phases, settings, hint)


@SAMPLES.check("steps for which there is no sample at all", points=1, needs=("check_mean",))
def check_empty(answer: Answer) -> None:
    """They change nothing, the velocity neither."""
    sizes: Sizes = [[[3], [2]], [[], []], [[1], [4]]]
    _ask(
        answer,
        [_steps(sizes)],
        _settings(momentum=0.9),
        "In the second step no rank has a sample. It is no step: what would be its mean?",
    )


@SAMPLES.check("one message per step, whatever is accumulated", points=3, needs=("check_mean",))
def check_messages(answer: Answer) -> None:
    """The gradient and what else all ranks have to know."""
    ranks, features = 3, 400
    sizes = [[[2, 2, 2, 2], [2], [1, 3]], [[1], [], [2, 2]]]
    steps = _steps(sizes, features)
    weight = torch.randn(features, dtype=torch.double) / 20
    run = answer.run(
        _trained,
        ranks,
        weight,
        None,
        _own(steps),
        _settings(),
        backend="ring",
        record=True,
        timeout=8.0,
    )
    calls = run.traffic.calls(rank=0)
    require(
        calls == len(steps),
        f"{plural(calls, 'collective call')} in {len(steps)} steps of up to 4 micro-batches. When do the others need "
        "a gradient, and what can travel with it?",
    )
    most = len(steps) * 2 * (ranks - 1) * (8 * features + 16) // ranks + 32 * len(steps)
    for rank in range(ranks):
        sent = run.traffic.bytes_sent(rank=rank)
        require(
            sent <= most,
            f"Rank {rank} sends {sent:,} bytes in {len(steps)} steps; an all-reduce of {features} numbers and two more "
            f"takes {most:,}.",
        )
