"""The checks of lesson 01: bytes against the memory wall, Amdahl's law fitted, gradients of uneven shares."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from torch import nn

from dtcourse.course.checks import Answer, Exercise, require

# --- 1. the memory wall -----------------------------------------------------------------------------------------

MEMORY = Exercise(
    "memory_wall",
    lesson="01",
    title="Bytes against the memory wall",
    takes=("states_bytes", "devices_needed"),
    target="exact to 1 byte and 1 device, for 3 optimizers and 2 precisions",
)

_STATES = {
    "sgd": 0,
    "momentum": 1,
    "adam": 2,
}  # numbers of 32 bits that the optimizer keeps a parameter


def _expected_states(n: int, optimizer: str, precision: str) -> dict[str, int]:
    low = 2 if precision == "mixed" else 4
    master = 4 if precision == "mixed" else 0
    return {
        "parameters": low * n,
        "gradients": low * n,
        "optimizer states": (master + 4 * _STATES[optimizer]) * n,
    }


def _states(states_bytes: Any, _: Any, cases: list[tuple[int, str, str]]) -> list[dict[str, int]]:
    return [states_bytes(*case) for case in cases]


def _devices(_: Any, devices_needed: Any, cases: list[tuple[int, int, int]]) -> list[int]:
    return [devices_needed(*case) for case in cases]


def _impossible(_: Any, devices_needed: Any, cases: list[tuple[int, int, int]]) -> list[str]:
    said = []
    for case in cases:
        try:
            said.append(f"returned {devices_needed(*case)!r}")
        except Exception as error:
            said.append(type(error).__name__)
    return said


@MEMORY.check("32-bit training: 4 bytes a number, and the optimizer decides how many", points=2)
def check_full_precision(answer: Answer) -> None:
    """SGD 8, momentum 12, Adam 16 bytes a parameter."""
    _compare_states(answer, "fp32")


@MEMORY.check("mixed precision: halves where they may be, and a master copy", points=2)
def check_mixed_precision(answer: Answer) -> None:
    """SGD 8, momentum 12, Adam 16 bytes a parameter as well, split in another way."""
    _compare_states(answer, "mixed")


def _compare_states(answer: Answer, precision: str) -> None:
    cases = [(random.randrange(10**6, 10**9), name, precision) for name in _STATES]
    came = answer.call(_states, cases)
    for case, got in zip(cases, came, strict=True):
        n, optimizer, _ = case
        right = _expected_states(*case)
        require(
            isinstance(got, dict) and set(got) == set(right),
            f"states_bytes should return a dict with the keys {sorted(right)}; got {got!r}.",
        )
        for part, value in right.items():
            hint = {
                "parameters": "How many bytes has a number in this precision?",
                "gradients": "A gradient has the precision of the weight that it belongs to.",
                "optimizer states": "Which numbers does this optimizer remember from step to step, in 32 bits each? "
                "In mixed precision there is one more: the weights that it really updates.",
            }[part]
            require(
                got[part] == value,
                f"{optimizer} in {precision}, {n:,} parameters: {part} should be {value / n:g} bytes a parameter, and "
                f"yours are {got[part] / n:g}. {hint}",
            )


@MEMORY.check("how many devices, when the states are divided and activations are not", points=3)
def check_devices(answer: Answer) -> None:
    """ceil(states / (device - activations)), exact where it fits exactly."""
    cases = [
        (random.randrange(10**11, 10**13), 80 * 10**9, random.randrange(70 * 10**9))
        for _ in range(4)
    ]
    cases += [
        (160 * 10**9, 80 * 10**9, 0),
        (60 * 10**9, 80 * 10**9, 20 * 10**9),
        (1, 80 * 10**9, 0),
    ]
    for (states, device, activations), got in zip(cases, answer.call(_devices, cases), strict=True):
        right = -(-states // (device - activations))
        share = states / got + activations if isinstance(got, int) and got > 0 else math.nan
        if isinstance(got, int) and got > 0 and got < right:
            why = f"each would then hold {share / 1e9:.4g} GB: its share of the states, and all of its activations."
        elif isinstance(got, int) and got == right + 1:
            why = "one fewer is enough. What does your rounding do where it fits exactly?"
        else:
            why = "which part of the memory becomes smaller with more devices, and which does not?"
        require(
            type(got) is int and got == right,
            f"{states / 1e9:.6g} GB of states and {activations / 1e9:.4g} GB of activations on devices of "
            f"{device / 1e9:g} GB: {right} devices are needed, and you say {got!r}: {why}",
        )


@MEMORY.check("where no number of devices is enough, it says so", points=1)
def check_impossible(answer: Answer) -> None:
    """ValueError where the activations alone fill a device."""
    for said in answer.call(
        _impossible, [(10**9, 80 * 10**9, 80 * 10**9), (10**9, 80 * 10**9, 10**11)]
    ):
        require(
            said == "ValueError",
            f"If activations alone fill a device, dividing the states cannot help: raise a ValueError. Yours: {said}.",
        )


# --- 2. Amdahl's law --------------------------------------------------------------------------------------------

AMDAHL = Exercise(
    "amdahl",
    lesson="01",
    title="Amdahl's law from measurements",
    takes=("serial_fraction", "predict_seconds", "most_ranks"),
    target="the fraction to 1e-6 from exact times and to 0.03 from times with 2% noise; the number of ranks exactly",
)


def _seconds(
    total: float, fraction: float, ranks: list[int], noise: float = 0.0
) -> dict[int, float]:
    return {
        w: total * (fraction + (1 - fraction) / w) * (1 + random.uniform(-noise, noise))
        for w in ranks
    }


def _fractions(
    serial_fraction: Any, _p: Any, _m: Any, cases: list[dict[int, float]]
) -> list[float]:
    return [float(serial_fraction(dict(case))) for case in cases]


def _predictions(_s: Any, predict_seconds: Any, _m: Any, cases: list[Any]) -> list[float]:
    return [float(predict_seconds(dict(times), ranks)) for times, ranks in cases]


def _most(_s: Any, _p: Any, most_ranks: Any, cases: list[Any]) -> list[int]:
    return [most_ranks(dict(times), efficiency) for times, efficiency in cases]


@AMDAHL.check("the serial fraction of exact times", points=2)
def check_fraction(answer: Answer) -> None:
    """Recovered to 1e-6, also where no time of one rank is given."""
    for ranks, what in (([1, 2, 4, 8], "1, 2, 4 and 8"), ([2, 3, 8], "2, 3 and 8")):
        fractions = [random.uniform(0.02, 0.6) for _ in range(3)]
        cases = [_seconds(random.uniform(1, 100), s, ranks) for s in fractions]
        for s, got in zip(fractions, answer.call(_fractions, cases), strict=True):
            require(
                abs(got - s) < 1e-6,
                f"From the exact times of {what} ranks the serial fraction is {s:.4f}, and yours is {got:.4f}. The time on "
                "W ranks is a + b / W: which two numbers are a and b, and which share of T(1) is a?",
            )


@AMDAHL.check("the serial fraction of noisy times", points=2)
def check_noise(answer: Answer) -> None:
    """All measurements count: the answer is a fit."""
    errors = []
    for _ in range(40):
        s = random.uniform(0.1, 0.4)
        times = _seconds(10.0, s, [1, 2, 3, 4, 6, 8, 12, 16], noise=0.02)
        errors.append((s, times))
    came = answer.call(_fractions, [times for _, times in errors])
    off = sum((got - s) ** 2 for (s, _), got in zip(errors, came, strict=True)) / len(errors)
    require(
        math.sqrt(off) < 0.012
        and max(abs(g - s) for (s, _), g in zip(errors, came, strict=True)) < 0.03,
        f"With 2% noise on eight times, your fraction is off by {math.sqrt(off):.3f} (root mean square over 40 tries); "
        "0.012 is possible. Does every measurement count in your fit, or only two of them?",
    )


@AMDAHL.check("times are predicted for ranks that nobody measured", points=2)
def check_prediction(answer: Answer) -> None:
    """Seconds, by Amdahl's law, to a millionth."""
    cases, expected = [], []
    for _ in range(4):
        total, s, ranks = (
            random.uniform(1, 100),
            random.uniform(0.02, 0.6),
            random.choice([16, 64, 1000]),
        )
        cases.append((_seconds(total, s, [2, 4, 8]), ranks))
        expected.append(total * (s + (1 - s) / ranks))
    for (_, ranks), got, right in zip(
        cases, answer.call(_predictions, cases), expected, strict=True
    ):
        require(
            abs(got - right) < 1e-6 * right,
            f"On {ranks} ranks the work takes {right:.4f} s, and you predict {got:.4f} s. The serial part takes as long "
            "as ever, however many ranks there are; only the rest is divided.",
        )


@AMDAHL.check("how many ranks are worth their money", points=2)
def check_most(answer: Answer) -> None:
    """The largest whole number with at least that efficiency."""
    cases, expected = [], []
    for efficiency in (0.9, 0.75, 0.5, 0.5):
        s = random.uniform(0.003, 0.15)
        bound = 1 + (1 / efficiency - 1) / s  # E = 1 / (s W + 1 - s)
        if abs(bound - round(bound)) < 1e-3:
            s *= 1.01
        cases.append((_seconds(random.uniform(1, 100), s, [1, 2, 4, 8]), efficiency))
        expected.append(math.floor(1 + (1 / efficiency - 1) / s))
    for (times, efficiency), got, right in zip(
        cases, answer.call(_most, cases), expected, strict=True
    ):
        extra = ""
        if got == right + 1:
            extra = (
                " The number after the last good one is not good any more: which way do you round?"
            )
        require(
            got == right,
            f"An efficiency of at least {efficiency:.0%} (speed-up divided by ranks) is kept up to {right} ranks, and you "
            f"say {got!r}, from times of {sorted(times)} ranks.{extra}",
        )


# --- 3. uneven shares -------------------------------------------------------------------------------------------

UNEVEN = Exercise(
    "average_uneven",
    lesson="01",
    title="The gradient of uneven shares",
    takes=("average_uneven",),
    target="gradient error below 1e-6 at 1, 2, 3 and 4 ranks, also with empty shares, and at most 2 collectives a step",
)


class _Net(nn.Module):
    """Three layers in 64 bits, the middle one frozen, weights given by the judge."""

    def __init__(self, weights: list[torch.Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(w.clone()) for w in weights])
        self.weights[1].requires_grad_(False)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return ((x - y) ** 2).mean()


def _uneven(
    average_uneven: Any, weights: list[torch.Tensor], shares: list[Any]
) -> list[torch.Tensor | None]:
    import torch.distributed as dist

    model = _Net(weights)
    x, y = shares[dist.get_rank()]
    if len(x):  # as in a real loop: a rank without images has nothing to go backward through
        model.loss(x, y).backward()
    average_uneven(model, len(x))
    return [p.grad for p in model.parameters()]


def _draw(sizes: list[int]) -> tuple[list[torch.Tensor], list[Any], list[torch.Tensor | None]]:
    weights = [torch.randn(a, b, dtype=torch.float64) / 2 for a, b in ((5, 7), (7, 6), (6, 2))]
    x, y = (
        torch.randn(sum(sizes), 5, dtype=torch.float64),
        torch.randn(sum(sizes), 2, dtype=torch.float64),
    )
    whole = _Net(weights)
    whole.loss(x, y).backward()
    shares = list(zip(x.split(sizes), y.split(sizes), strict=True))
    return (
        weights,
        [(a.clone(), b.clone()) for a, b in shares],
        [p.grad for p in whole.parameters()],
    )


def _compare(answer: Answer, sizes: list[int]) -> None:
    weights, shares, right = _draw(sizes)
    run = answer.run(_uneven, len(sizes), weights, shares, timeout=8.0)
    for rank, gradients in enumerate(run):
        where = f"With {sizes} images on the ranks, rank {rank}"
        for number, (got, want) in enumerate(zip(gradients, right, strict=True)):
            if want is None:
                require(
                    got is None,
                    f"{where} has a gradient for a frozen parameter: leave those alone.",
                )
                continue
            require(
                got is not None,
                f"{where} has no gradient for parameter {number}. It had no images, but it takes the same optimizer step "
                "as all others, so it needs the same gradient.",
            )
            error = ((got - want).abs().max() / want.abs().max()).item()
            ratio = ((got * want).sum() / (want * want).sum()).item()
            even = (got / ratio - want).abs().max() / want.abs().max() < 1e-6 if ratio else False
            hint = (
                f"It is {ratio:.3g} times the right one: what should the sum be divided by?"
                if even
                else "Should an image on a rank with few of them count more than one on a rank with many?"
            )
            require(
                error < 1e-6,
                f"{where}: the gradient of parameter {number} is off by {error:.0%} of its size. {hint}",
            )


@UNEVEN.check("equal shares: the gradient of the whole batch, at 1, 2 and 3 ranks", points=1)
def check_equal(answer: Answer) -> None:
    """The case of the lesson."""
    for world_size in (1, 2, 3):
        _compare(answer, [6] * world_size)


@UNEVEN.check("uneven shares: every image counts the same", points=3)
def check_uneven(answer: Answer) -> None:
    """Weighted by the number of images."""
    _compare(answer, [9, 2])
    _compare(answer, [1, 7, 3, 5])


@UNEVEN.check("a rank without any images takes part, and gets the gradient", points=2)
def check_empty(answer: Answer) -> None:
    """Empty shares neither hang nor leave a rank behind."""
    _compare(answer, [5, 0, 8])


@UNEVEN.check("at most two collectives a step, whatever the number of parameters", points=2)
def check_calls(answer: Answer) -> None:
    """Counted by what left the rank."""
    weights, shares, _ = _draw([4, 2])
    run = answer.run(_uneven, 2, weights, shares, record=True)
    calls = run.traffic.calls(rank=0)
    require(
        1 <= calls <= 2,
        f"Rank 0 called {calls} collectives in one step; 2 are enough for any model. Each call costs its latency again: "
        "can the gradients travel in one vector?",
    )
