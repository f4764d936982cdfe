"""Tensors on GPUs: over NCCL's send and recv where each rank has a GPU of its own, else through host memory.

Through host memory a message costs two copies more: from the GPU before it is sent, to the GPU after it has come. The
copies run on the current stream and are waited for, so that gloo never reads what is not there yet.

NCCL carries out unbatched messages of two ranks, or of a whole group, in the order of posting, and has no tags. So
the algorithms post what has to be under way at once in one batch (batch.py); all of them are run in that order by
tests/collectives/test_nccl_order.py, on a CPU.

unverified: this file was written without a GPU; tests/collectives/test_device_transport.py (marked gpu) is to be run
where there is one. The staging itself is tested with host tensors in place of GPU ones.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch


def start(kind: str, tensor: torch.Tensor, peer: int | None, tag: int, host: Any, gpu: Any) -> Any:
    """Posts one message of a tensor on a GPU. kind: "send" or "recv"; host, gpu: the backends (gpu may be None)."""
    if gpu is not None:
        if peer is None:
            raise ValueError("NCCL cannot receive from any source: name the sending rank with src=")
        return gpu.send([tensor], peer, tag) if kind == "send" else gpu.recv([tensor], peer, tag)
    if kind == "send":
        copy = tensor.detach().to("cpu", copy=True)  # returns when the copy is complete
        return Staged(host.send([copy], peer, tag), copy, None)
    buffer = torch.empty(tensor.shape, dtype=tensor.dtype)
    posted = host.recv_anysource([buffer], tag) if peer is None else host.recv([buffer], peer, tag)
    return Staged(posted, buffer, tensor)


class Staged:
    """A message in host memory, on its way from or to a GPU."""

    def __init__(self, posted: Any, buffer: torch.Tensor, target: torch.Tensor | None) -> None:
        self._posted, self._buffer, self._target = posted, buffer, target

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._posted.wait(timeout) if timeout else self._posted.wait()
        if self._target is not None:
            with torch.no_grad():
                self._target.copy_(self._buffer)
            self._target = None
        return True

    def is_completed(self) -> bool:
        return self._target is None and self._posted.is_completed()

    def source_rank(self) -> int:
        return self._posted.source_rank()

    _source_rank = source_rank  # torch has both names
