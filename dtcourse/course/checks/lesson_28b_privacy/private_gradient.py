"""A private gradient over ranks: clipped per sample, noise once, divided by what is expected."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Each, Exercise, require, require_close
from dtcourse.plural import plural

PRIVATE = Exercise(
    "private_gradient",
    lesson="28b",
    title="A private gradient over ranks",
    takes=("private_gradient",),
    target="equal to one process to 1e-9 at 1, 2 and 4 ranks without noise; the noise's deviation within 5 of its "
    "standard errors",
    forbidden=("dtcourse.federated",),
)

K, D = 40, 60  # of W: its numbers give the noise's deviation to 1 / sqrt(2 K D) = 1.4 %
Batch = tuple[Tensor, Tensor]


def _gradient(
    private_gradient: Any, w: Tensor, own: Batch, calls: list[tuple[float, float, float]]
) -> Any:
    """In a rank: its answer for each max_norm, noise_multiplier and expected."""
    x, y = own
    torch.manual_seed(0)  # as in a new process: who seeds no generator draws the same in each run
    return [private_gradient(w.clone(), x.clone(), y.clone(), *call) for call in calls]


def drawn(ranks: int, empty: tuple[int, ...] = ()) -> tuple[Tensor, list[Batch]]:
    """W, and each rank's samples: lengths of gradients differ a hundredfold, and one sample has no gradient at all.

    empty: the ranks that have no sample
    """
    w = torch.randn(K, D, dtype=torch.double) / 10
    batches = []
    for rank in range(ranks):
        num = 0 if rank in empty else random.randint(3, 9)
        x = (
            torch.randn(num, D, dtype=torch.double)
            * 10 ** torch.linspace(-1, 1, max(num, 1))[:num, None]
        )
        y = torch.randn(num, K, dtype=torch.double)
        if rank == 0 and num:
            x[-1] = 0
        batches.append((x, y))
    return w, batches


def clean(w: Tensor, batches: list[Batch], max_norm: float) -> Tensor:
    """(k, d): the sum of all samples' clipped gradients, one after the other."""
    total = torch.zeros_like(w)
    for x, y in batches:
        for one, target in zip(x, y, strict=True):
            gradient = torch.outer(w @ one - target, one)
            norm = float(gradient.norm())
            total += gradient * (max_norm / norm if norm > max_norm else 1.0)
    return total


def norm_in_the_middle(w: Tensor, batches: list[Batch]) -> float:
    """Half of the samples' gradients are longer."""
    norms = torch.cat([(x @ w.T - y).norm(dim=1) * x.norm(dim=1) for x, y in batches])
    return float(norms.median())


def _hint(got: Tensor, w: Tensor, batches: list[Batch], max_norm: float, expected: float) -> str:
    """What the wrong gradient looks like."""
    num, right = sum(len(x) for x, _ in batches), clean(w, batches, max_norm)
    if bool(got.isnan().any()):
        if num and all(len(x) for x, _ in batches):
            return "A sample's gradient may be 0: what is divided by its length?"
        return "A rank may have no sample: what is a mean over none?"
    if float((got - right / expected).norm()) < 1e-6 * float(right.norm()) / expected:
        return "It is right but for rounding: is all of it in double precision, and is nothing added to a length?"
    plain = clean(w, batches, float("inf"))
    all_as_long = torch.zeros_like(w)
    for x, y in batches:
        for one, target in zip(x, y, strict=True):
            gradient = torch.outer(w @ one - target, one)
            all_as_long += gradient * (max_norm / max(float(gradient.norm()), 1e-12))
    shapes = (
        (
            right / num,
            "That is divided by the samples that came. How many are expected, whoever comes?",
        ),
        (right, "That is the sum. By what is it divided?"),
        (
            right / expected / len(batches),
            "That is divided by the number of ranks, too: expected counts all of them.",
        ),
        (
            clean(w, batches[:1], max_norm) / expected,
            "That is rank 0's part alone. Where are the others' samples?",
        ),
        (plain / expected, "That is not clipped."),
        (
            all_as_long / expected,
            "Short gradients were made longer: what does clipping do with those?",
        ),
    )
    for one, words in shapes:
        if float((got - one).norm()) < 1e-6 * float(one.norm()):
            return words
    return (
        "Is each sample's gradient clipped by itself, before any of them are added? The length is that of the whole "
        "gradient by W."
    )


@PRIVATE.check("without noise: equal to one process", points=4)
def check_clean(answer: Answer) -> None:
    """Some gradients longer than max_norm, all of them, or none."""
    for ranks, empty in ((1, ()), (2, ()), (4, (3,))):
        w, batches = drawn(ranks, empty)
        middle, expected = norm_in_the_middle(w, batches), float(random.randint(10, 60))
        calls = [(c, 0.0, expected) for c in (middle, middle * 1e-4, middle * 1e4)]
        run = answer.run(_gradient, ranks, w, Each(batches), calls)
        for i, (max_norm, _, _) in enumerate(calls):
            right = clean(w, batches, max_norm) / expected
            for rank in range(ranks):
                got, where = (
                    run[rank][i],
                    f"{plural(ranks, 'rank')}, rank {rank}, max_norm {max_norm:.3g}",
                )
                shaped = isinstance(got, Tensor) and got.shape == w.shape
                require(shaped, f"{where}: a gradient is a tensor of shape {tuple(w.shape)}.")
                if not float((got - right).norm()) <= 1e-9 * float(right.norm()):
                    hint = _hint(got.double(), w, batches, max_norm, expected)
                    require_close(got.double(), right, where, 1e-9, hint)
                    require(False, f"{where}: it is off by more than 1e-9. {hint}")


@PRIVATE.check("the noise is as large as it is to be", points=3, needs=("check_clean",))
def check_noise(answer: Answer) -> None:
    """Whatever the number of ranks, and the size of the batch, which may be empty."""
    for ranks, empty in ((1, ()), (2, (0, 1)), (4, (0,))):
        w, batches = drawn(ranks, empty)
        max_norm, z = (
            random.choice([random.uniform(0.4, 0.7), random.uniform(2, 4)]) for _ in range(2)
        )
        expected = random.uniform(20, 80)
        run = answer.run(_gradient, ranks, w, Each(batches), [(max_norm, z, expected)])
        off = (run[0][0] - clean(w, batches, max_norm) / expected) * expected
        deviation, right = float(off.std()), z * max_norm
        error, told = (
            right / (2 * w.numel()) ** 0.5,
            f"{plural(ranks, 'rank')}, max_norm {max_norm:.3g}",
        )
        require(
            abs(deviation - right) <= 5 * error,
            f"{told}, noise_multiplier {z:.3g}: the noise on the sum has a deviation of {deviation:.4g}; "
            f"{right:.4g} is right, to {5 * error:.2g}. {_noise_hint(deviation / right, ranks, max_norm, z, expected)}",
        )
        require(
            abs(float(off.mean())) <= 5 * right / w.numel() ** 0.5,
            f"{told}: the noise has a mean of {float(off.mean()):.3g}, and it should have none.",
        )
        # 3 for the normal distribution, to 0.1 here; 1.8 for the uniform one, 6 for Laplace's
        fourth = float((off / deviation).pow(4).mean())
        require(
            abs(fourth - 3) < 0.6,
            f"{told}: the noise has the right deviation, and is not normal. For which noise does the accountant count?",
        )


def _noise_hint(times: float, ranks: int, max_norm: float, z: float, expected: float) -> str:
    def near(one: float) -> bool:
        return abs(times - one) <= 0.1 * one

    if times < 1e-6:
        return "There is none. A batch without samples is one, too: whoever sees zeros knows that nobody was drawn."
    if ranks > 1 and (near(ranks**0.5) or near(ranks)):
        return "How often is noise added, over all ranks, and do two ranks draw the same numbers?"
    if near(expected) or near(1 / expected):
        return "Is it added to the sum, or to what has been divided already?"
    if near(1 / max_norm) or near(1 / z) or near(z * max_norm):
        return "The deviation is noise_multiplier times max_norm, and not its square or one of the two."
    return "Its deviation on the sum is noise_multiplier times max_norm, once."


@PRIVATE.check(
    "one noise on all ranks, and another one in each run", points=3, needs=("check_noise",)
)
def check_drawn(answer: Answer) -> None:
    """Otherwise replicas part, or somebody takes it off."""
    w, batches = drawn(4)  # with two ranks a sum in any order has the same bits
    call = (1.0, 1.0, 20.0)
    first = answer.run(_gradient, 4, w, Each(batches), [call, call])
    second = answer.run(_gradient, 4, w, Each(batches), [call])
    require(
        all(torch.equal(a, b) for own in first for a, b in zip(first[0], own, strict=True)),
        "Two ranks have different gradients: their models part after this step. Who draws the noise, how do the others "
        "get it, and does each rank add up in the same order?",
    )
    require(
        not torch.equal(first[0][0], first[0][1]),
        "Called twice, it adds the same noise twice: the difference of two steps has none at all.",
    )
    require(
        not torch.equal(first[0][0], second[0][0]),
        "Run again, it adds the same noise as before: whoever runs your program takes it off. From which seed does the "
        "generator begin? PyTorch's own begins with the same one in each new process, and `launch` seeds Python's and "
        "numpy's by the rank: what comes from the system itself?",
    )
