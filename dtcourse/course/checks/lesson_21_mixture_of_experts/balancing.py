"""The job of exercise 21-3, which is really run: a bias per expert keeps a router balanced, while tokens change."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtcourse.course.judging.threads import one_thread
from dtcourse.course.judging.trials import Choice

EXPERTS, TOKENS, CHOSEN = 16, 256, 2
STEPS, WARM = 240, 60  # steps, and those before anything counts


def loads(
    choices: Sequence[Choice], spread: float, drift: float, bursts: float, seed: int
) -> list[float]:
    """With each choice: the busiest expert's pairs over the mean's, as a mean over the steps after the first ones.

    choices: ("sign" or "proportional", change): how the bias moves after each step; the tokens are the same for all
    spread: of the experts' popularity, in logits; drift: of it, per step
    bursts: of the popularity in every tenth batch, which is of one subject, besides
    """
    make = torch.Generator().manual_seed(seed)
    popular = spread * torch.randn(EXPERTS, generator=make)
    signs = torch.tensor([rule == "sign" for rule, _ in choices]).unsqueeze(1)
    change = torch.tensor([change for _, change in choices]).unsqueeze(1)
    bias_CE, sums = torch.zeros(len(choices), EXPERTS), torch.zeros(len(choices))
    mean = TOKENS * CHOSEN / EXPERTS
    with one_thread():
        for step in range(STEPS):
            popular = popular * (1 - drift**2) ** 0.5 + drift * spread * torch.randn(
                EXPERTS, generator=make
            )
            subject = (bursts if step % 10 == 9 else 0.0) * torch.randn(EXPERTS, generator=make)
            scores = (popular + subject + torch.randn(TOKENS, EXPERTS, generator=make)).sigmoid()
            best = (scores + bias_CE.unsqueeze(1)).topk(CHOSEN).indices.flatten(1)
            counts_CE = torch.zeros_like(bias_CE).scatter_add_(1, best, torch.ones(best.shape))
            if step >= WARM:
                sums += counts_CE.amax(1) / mean
            missing = mean - counts_CE
            bias_CE += change * torch.where(signs, missing.sign(), missing / mean)
    return (sums / (STEPS - WARM)).tolist()
