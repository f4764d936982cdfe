"""The global norm of all gradients, right also where they are spread over ranks.

|g|^2 is a sum over all elements. A rank that holds a shard knows its part of the sum only, so the parts are added
over the ranks that hold different parts; replicated gradients must not be added, or the norm grows by sqrt(ranks).
One all-reduce of one number. (Pascanu et al., arXiv 1211.5063, for clipping itself.)
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from dtcourse import device


def global_norm(
    replicated: Iterable[torch.Tensor] | torch.Tensor = (),
    sharded: Iterable[torch.Tensor] | torch.Tensor = (),
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """The 2-norm of all gradients together: a scalar tensor in float64, the same on every rank of `group`.

    replicated: gradients that every rank of the group holds whole, after averaging
    sharded:    this rank's parts of gradients that are spread over the group; may be empty, but the call may not
        be left out, for it is a collective
    """
    replicated, sharded = _listed(replicated), _listed(sharded)
    part, parts = _square_sum(replicated), _square_sum(sharded)
    if dist.is_initialized():
        if not replicated and not sharded:  # nothing here says where the others' gradients are
            part, parts = part.to(device.current()), parts.to(device.current())
        parts = parts.to(part.device) if replicated else parts
        dist.all_reduce(parts, group=group)
    return (part.to(parts.device) + parts).sqrt()


def clip_grad_norm(
    replicated: Iterable[torch.nn.Parameter] | torch.nn.Parameter = (),
    max_norm: float = 1.0,
    *,
    sharded: Iterable[torch.nn.Parameter] | torch.nn.Parameter = (),
    group: dist.ProcessGroup | None = None,
    error_if_nonfinite: bool = False,
) -> torch.Tensor:
    """Scales all gradients so that their global norm is at most `max_norm`; returns the norm before.

    As torch.nn.utils.clip_grad_norm_, with parameters that are replicated and parameters that are sharded told apart.
    All ranks scale by the same factor, so replicated weights stay equal. With error_if_nonfinite all ranks raise
    RuntimeError together where the norm is infinite or NaN.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm is above 0; got {max_norm}")
    whole = [p.grad for p in _listed(replicated) if p.grad is not None]
    parts = [p.grad for p in _listed(sharded) if p.grad is not None]
    norm = global_norm(whole, parts, group)
    if error_if_nonfinite and not torch.isfinite(norm):
        raise RuntimeError(
            f"the gradients' global norm is {norm.item()}: there is nothing to clip to"
        )
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for gradient in whole + parts:
        gradient.mul_(scale.to(gradient.device, gradient.dtype))
    return norm


def _listed(tensors: Iterable[torch.Tensor] | torch.Tensor) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _square_sum(gradients: list[torch.Tensor]) -> torch.Tensor:
    """In float64 on every rank, whatever it holds, so that ranks agree; each norm in float32 at least."""
    if not gradients:
        return torch.zeros((), dtype=torch.double)
    wide = [torch.promote_types(g.dtype, torch.float32) for g in gradients]
    norms = [
        torch.linalg.vector_norm(g.detach(), dtype=t) for g, t in zip(gradients, wide, strict=True)
    ]
    where = norms[0].device
    return torch.stack([n.to(where, torch.double) for n in norms]).square().sum()
