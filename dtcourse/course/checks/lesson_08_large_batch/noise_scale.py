"""The noise scale, from ranks' gradients."""

from __future__ import annotations

import math
from typing import Any

import torch

from dtcourse.course.judging import Answer, Exercise, require

Tensors = list[torch.Tensor]

NOISE = Exercise(
    "noise_scale",
    lesson="08",
    title="The noise scale, from ranks' gradients",
    takes=("noise_scale",),
    target="the three numbers to 1e-9 on 2 and 3 ranks, the same on all; within 20% of the truth over 400 steps",
    forbidden=("dtcourse.large_batch",),
)


def _scale(noise_scale: Any, gradients: Tensors, batch: int) -> list[float]:
    import torch.distributed as dist

    return [float(x) for x in noise_scale(gradients[dist.get_rank()].clone(), batch)]


def _noise(gradients: Tensors, b: int) -> tuple[float, float, float]:
    stacked = torch.stack(gradients)  # rank, step, number
    big_b = b * len(gradients)
    small = stacked.square().sum(2).mean(0)
    big = stacked.mean(0).square().sum(1)
    signal = ((big_b * big - b * small) / (big_b - b)).mean().item()
    noise = ((small - big) / (1 / b - 1 / big_b)).mean().item()
    return signal, noise, noise / signal if signal > 0 else math.nan


def _draw(ranks: int, steps: int, n: int, b: int, true: float, noise: float) -> Tensors:
    """Gradients with |G| = true and tr(S) = noise, of batches of b."""
    g = torch.zeros(n, dtype=torch.double)
    g[0] = true
    return [
        g + torch.randn(steps, n, dtype=torch.double) * (noise / n / b) ** 0.5 for _ in range(ranks)
    ]


def _ask_noise(answer: Answer, gradients: Tensors, batch: int, hints: tuple[str, str, str]) -> None:
    right = _noise(gradients, batch)
    run = answer.run(_scale, len(gradients), gradients, batch)
    for rank, got in enumerate(run):
        require(
            len(got) == 3,
            f"noise_scale returns three numbers, |G|², tr Σ and their ratio; rank {rank} gave {len(got)}.",
        )
        for name, mine, theirs, hint in zip(
            ("|G|²", "tr Σ", "the noise scale"), got, right, hints, strict=True
        ):
            require(
                (math.isnan(mine) and math.isnan(theirs))
                or math.isclose(mine, theirs, rel_tol=1e-9),
                f"On {len(gradients)} ranks with {batch} samples each, rank {rank} finds {mine:.6g} for {name}; "
                f"by the two equations it is {theirs:.6g}. {hint}",
            )


_HINTS = (
    "Which batch has a rank's own gradient, and which the average? And |g_b|²: of one rank, or the mean over all?",
    "It is the difference of the two squared norms over the difference of 1/b and 1/B. Is B the samples of all ranks together?",
    "Both are noisy in a single step: average each over the steps, and divide at the end.",
)


@NOISE.check("one step, by the two equations", points=2)
def check_one_noise(answer: Answer) -> None:
    """On two and on three ranks."""
    for ranks in (2, 3):
        _ask_noise(answer, _draw(ranks, 1, 6, 4, 3.0, 2.0), 4, _HINTS)


@NOISE.check("many steps: a ratio of averages", points=2)
def check_many_noise(answer: Answer) -> None:
    """And near the truth, which the judge knows since it drew the gradients."""
    gradients = _draw(3, 400, 20, 8, 1.0, 24.0)
    _ask_noise(answer, gradients, 8, _HINTS)
    found = answer.run(_scale, 3, gradients, 8)[0][2]
    require(abs(found / 24 - 1) < 0.2 or abs(_noise(gradients, 8)[2] / 24 - 1) > 0.2,
            f"The gradients were drawn with a noise scale of 24; you find {found:.3g}.")  # fmt: skip


@NOISE.check("nothing but noise: no number", points=1)
def check_all_noise(answer: Answer) -> None:
    """Where the estimate of |G|² is not above 0, the scale is NaN."""
    own = torch.randn(1, 5, dtype=torch.double)
    _ask_noise(
        answer,
        [own, -own],
        4,
        (*_HINTS[:2], "|G|² came out below 0: there is no signal to compare with. Say math.nan."),
    )
