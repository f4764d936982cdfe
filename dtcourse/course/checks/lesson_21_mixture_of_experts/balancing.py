"""The job of exercise 21-3, which is really run: a bias per expert keeps a router balanced, while tokens change."""

from __future__ import annotations

import torch

from dtcourse.course.judging import trials
from dtcourse.course.judging.threads import one_thread

EXPERTS, TOKENS, CHOSEN = 16, 256, 2
STEPS, WARM = 240, 60  # steps, and those before anything counts


def job(
    choice: trials.Choice, spread: float, drift: float, bursts: float, seed: int
) -> tuple[float]:
    """The busiest expert's pairs over the mean's, as a mean over the steps after the first ones.

    choice: ("sign" or "proportional", change): how the bias moves after each step
    spread: of the experts' popularity, in logits; drift: of it, per step
    bursts: of the popularity in every tenth batch, which is of one subject, besides
    """
    rule, change = choice
    make = torch.Generator().manual_seed(seed)
    popular = spread * torch.randn(EXPERTS, generator=make)
    bias, ratios = torch.zeros(EXPERTS), []
    with one_thread():
        for step in range(STEPS):
            popular = popular * (1 - drift**2) ** 0.5 + drift * spread * torch.randn(
                EXPERTS, generator=make
            )
            subject = (bursts if step % 10 == 9 else 0.0) * torch.randn(EXPERTS, generator=make)
            scores = (popular + subject + torch.randn(TOKENS, EXPERTS, generator=make)).sigmoid()
            counts = torch.bincount(
                (scores + bias).topk(CHOSEN).indices.flatten(), minlength=EXPERTS
            )
            mean = TOKENS * CHOSEN / EXPERTS
            if step >= WARM:
                ratios.append(float(counts.max()) / mean)
            missing = mean - counts
            bias += change * (missing.sign() if rule == "sign" else missing / mean)
    return (sum(ratios) / len(ratios),)
