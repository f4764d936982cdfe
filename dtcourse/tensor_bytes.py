"""The bytes of a tensor: what is hashed, compared, packed and sent, whatever strides it has."""

from __future__ import annotations

import torch


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """All elements in the order of their indices, the last dim fastest: uint8, shape (numel * itemsize,).

    A view where they lie so in memory; never part of an autograd graph.

    `contiguous().view(torch.uint8)` alone does not do it: PyTorch counts a tensor of one element as contiguous whatever
    its strides are (`logits[:, 0]` of a batch of one has stride 5), keeps these in most copies, and then refuses to
    view it as bytes.
    """
    laid = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return laid.as_strided((laid.numel(),), (1,)).view(torch.uint8)
