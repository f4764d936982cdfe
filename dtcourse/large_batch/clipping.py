"""The global norm of all gradients, right also where they are spread over ranks.

|g|^2 is a sum over all elements. A rank that holds a shard knows its part of the sum only, so the parts are added
over the ranks that hold different parts; replicated gradients must not be added, or the norm grows by sqrt(ranks).
One all-reduce of one number. (Pascanu et al., arXiv 1211.5063, for clipping itself.)
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist


def global_norm(
    replicated: Iterable[torch.Tensor] = (),
    sharded: Iterable[torch.Tensor] = (),
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """The 2-norm of all gradients together: a scalar tensor in float32, the same on every rank of `group`.

    replicated: gradients that every rank of the group holds whole, after averaging
    sharded:    this rank's parts of gradients that are spread over the group
    """
    replicated, sharded = list(replicated), list(sharded)
    part, parts = _square_sum(replicated), _square_sum(sharded)
    if dist.is_initialized():
        # Every rank takes part, also one whose shard is empty.
        parts = parts.to((replicated + sharded)[0].device) if replicated + sharded else parts
        dist.all_reduce(parts, group=group)
    return (part.to(parts.device) + parts).sqrt()


def clip_grad_norm(
    replicated: Iterable[torch.nn.Parameter] = (),
    max_norm: float = 1.0,
    *,
    sharded: Iterable[torch.nn.Parameter] = (),
    group: dist.ProcessGroup | None = None,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales all gradients so that their global norm is at most `max_norm`; returns the norm before.

    As torch.nn.utils.clip_grad_norm_, with parameters that are replicated and parameters that are sharded told apart.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm is above 0; got {max_norm}")
    whole = [p.grad for p in replicated if p.grad is not None]
    parts = [p.grad for p in sharded if p.grad is not None]
    norm = global_norm(whole, parts, group)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError(
            f"the gradients' global norm is {norm.item()}: there is nothing to clip to"
        )
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in whole + parts:
        gradient.mul_(scale.to(gradient.device, gradient.dtype))
    return norm


def _square_sum(gradients: list[torch.Tensor]) -> torch.Tensor:
    if not gradients:
        return torch.zeros(())
    return torch.stack([g.detach().float().square().sum() for g in gradients]).sum()
