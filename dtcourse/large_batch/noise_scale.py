"""The gradient noise scale: how large a batch still pays (McCandlish et al., arXiv 1812.06162, appendix A).

A batch of B samples estimates the true gradient G with variance tr(S) / B, so E|g_B|^2 = |G|^2 + tr(S) / B. Two batch
sizes give two equations. Data parallelism has both for free: each rank's own gradient (small batch b) and the
averaged one (large batch B = ranks * b):

    |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b)
    tr(S) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)        B_simple = tr(S) / |G|^2

Below B_simple, twice the batch saves nearly half the steps; above it, nearly none. Both are noisy in one step, so
they are averaged over steps before the division (a ratio of averages, not an average of ratios).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist


@dataclass
class NoiseScale:
    """Running estimate. Call `update` once a step, on every rank, with gradients from before the averaging.

    batch: samples of one rank;  decay: of the running averages, 0 keeps the last step only
    """

    batch: int
    decay: float = 0.9
    group: dist.ProcessGroup | None = None
    signal: float = 0.0  # running |G|^2
    noise: float = 0.0  # running tr(S)
    steps: int = 0

    def update(self, local: list[torch.Tensor], averaged: list[torch.Tensor]) -> None:
        """Takes this rank's gradients and their mean over the ranks: two lists of the same shapes."""
        ranks = dist.get_world_size(self.group)
        if ranks < 2:
            raise ValueError(
                "the noise scale compares ranks' gradients with their mean: it needs two ranks"
            )
        small = _square_norm(local)
        dist.all_reduce(small, group=self.group)
        b, big_b = self.batch, self.batch * ranks
        g_small, g_big = small.item() / ranks, _square_norm(averaged).item()
        signal = (big_b * g_big - b * g_small) / (big_b - b)
        noise = (g_small - g_big) / (1 / b - 1 / big_b)
        self.signal = self.decay * self.signal + (1 - self.decay) * signal
        self.noise = self.decay * self.noise + (1 - self.decay) * noise
        self.steps += 1

    @property
    def value(self) -> float:
        """B_simple in samples; NaN until the averages make sense (a negative |G|^2 is all noise)."""
        return self.noise / self.signal if self.steps and self.signal > 0 else float("nan")


def _square_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([g.detach().double().square().sum() for g in gradients]).sum()
