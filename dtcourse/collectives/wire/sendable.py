"""What can be a message: a tensor whose memory is what travels."""

from __future__ import annotations

import torch

from dtcourse import device


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the bytes in memory, in order, are the values: no gaps, and no conjugation or sign still to apply."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def check_message(tensor: torch.Tensor, rank: int) -> None:
    """ValueError unless the tensor's memory is the message: dense, here, contiguous, its bytes the values."""
    if tensor.layout != torch.strided:
        raise ValueError(
            f"rank {rank}: a message must be dense, got layout {tensor.layout}; call .to_dense() first"
        )
    if not tensor.is_cpu and tensor.device.type != device.available():
        raise ValueError(
            f"rank {rank}: a message is on cpu or {device.available()}, got a tensor on {tensor.device}"
        )
    if not tensor.is_contiguous():
        raise ValueError(
            f"rank {rank}: a message must be contiguous, got shape {tuple(tensor.shape)} "
            f"with strides {tensor.stride()}; call .contiguous() first"
        )
    if not is_plain(tensor):
        raise ValueError(
            f"rank {rank}: a message must hold its values, and this tensor is a view that conjugates or negates "
            "them; call .resolve_conj().resolve_neg() first"
        )
