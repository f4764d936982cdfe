"""The gradient noise scale: how large a batch still pays (McCandlish et al., arXiv 1812.06162, appendix A).

A batch of B samples estimates the true gradient G with variance tr(S) / B, so E|g_B|^2 = |G|^2 + tr(S) / B. Two batch
sizes give two equations. Data parallelism has both for free: each rank's own gradient (small batch b) and the
averaged one (large batch B = ranks * b):

    |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b)
    tr(S) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)        B_simple = tr(S) / |G|^2

Below B_simple, twice the batch saves nearly half the steps; above it, nearly none. Both are noisy in one step, so
they are averaged over steps before the division (a ratio of averages, not an average of ratios).
"""

# No `from __future__ import annotations`: PyTorch's DDP looks at the types in a hook's signature.
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist


@dataclass
class NoiseScale:
    """Running estimate of |G|^2, tr(S) and their ratio, the same on every rank of `group` (two ranks or more).

        scale = NoiseScale(batch=32)
        scale.update(local, averaged)                    # once a step; or, under DistributedDataParallel:

        model.register_comm_hook(None, scale.hook)       # sees each bucket before and after the average
        loss.backward(); scale.step()                    # once a step

    batch: samples in one rank's gradient, micro-batches accumulated before the average included
    decay: of the running means: about the last 1 / (1 - decay) steps count. 0: the last alone; 1: all alike
    """

    batch: int
    decay: float = 0.9
    group: dist.ProcessGroup | None = None
    signal: float = 0.0  # running mean of |G|^2
    noise: float = 0.0  # running mean of tr(S)
    steps: int = 0
    # squares of this step's buckets
    _small: list[torch.Tensor] = field(default_factory=list, repr=False)
    _big: list[torch.Tensor] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise ValueError(f"a rank's gradient is of at least one sample; got {self.batch}")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay is a share, 0 to 1; got {self.decay}")

    def update(self, local: list[torch.Tensor], averaged: list[torch.Tensor]) -> None:
        """Takes this rank's gradients and their mean over the ranks: two lists of the same shapes. A collective."""
        self._small.append(_square_norm(local))
        self._big.append(_square_norm(averaged))
        self.step()

    def hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A communication hook for DistributedDataParallel: averages, and notes both norms. `state` is not used."""
        gradients = bucket.buffer()
        self._small.append(_square_norm([gradients]))
        gradients.div_(dist.get_world_size(self.group))
        sent = dist.all_reduce(gradients, group=self.group, async_op=True).get_future()

        def note(future: torch.futures.Future[Any]) -> torch.Tensor:
            # appending is safe where buckets end together
            self._big.append(_square_norm([gradients]))
            return gradients

        return sent.then(note)

    def step(self) -> None:
        """Ends a step of training: one all-reduce of one number. Call it after backward, where `hook` is used."""
        ranks = dist.get_world_size(self.group)
        if ranks < 2:
            raise ValueError(
                "the noise scale compares ranks' gradients with their mean: it needs two ranks"
            )
        if not self._small:
            raise ValueError("there was no backward pass since the last step: nothing to measure")
        small = torch.stack(self._small).sum()
        g_big = torch.stack(self._big).sum().item()
        self._small.clear()
        self._big.clear()
        dist.all_reduce(small, group=self.group)
        b, big_b, g_small = self.batch, self.batch * ranks, small.item() / ranks
        signal = (big_b * g_big - b * g_small) / (big_b - b)
        noise = (g_small - g_big) / (1 / b - 1 / big_b)
        self.steps += 1
        share = max(1 - self.decay, 1 / self.steps)  # a plain mean until the decay takes over
        self.signal += share * (signal - self.signal)
        self.noise += share * (noise - self.noise)

    @property
    def value(self) -> float:
        """B_simple in samples; NaN until the averages make sense (a negative |G|^2 is all noise)."""
        return self.noise / self.signal if self.steps and self.signal > 0 else float("nan")


def _square_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([g.detach().double().square().sum() for g in gradients]).sum()
