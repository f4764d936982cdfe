"""The global norm of all gradients, replicated and sharded ones told apart, and clipping by it: parameters/grad_norm.py
in the shape of torch.nn.utils.clip_grad_norm_.

Clipping bounds the length of a step, whatever the batch (Pascanu et al., arXiv 1211.5063).
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from dtcourse import device
from dtcourse.parameters.grad_norm import Spread, scale_to, total_norm


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
    held = [*replicated, *sharded]
    where = held[0].device if held else device.current()
    ranks = (group,) if dist.is_initialized() else ()
    return total_norm([Spread(replicated, (), where), Spread(sharded, ranks, where)])


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
    whole = [p.grad for p in _listed(replicated) if p.grad is not None]
    parts = [p.grad for p in _listed(sharded) if p.grad is not None]
    norm = global_norm(whole, parts, group)
    scale_to([*whole, *parts], norm, max_norm, error_if_nonfinite)
    return norm


def _listed(tensors: Iterable[torch.Tensor] | torch.Tensor) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
