"""A device and its host, as two ranks: what autograd saves travels to rank 1 and back while rank 0 computes."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

import torch
from torch import nn

from dtcourse.torch_private import version_of

SMALL = 1024  # bytes: what is smaller stays on the device


class ToHost(torch.autograd.graph.saved_tensors_hooks):
    """Sends what is saved to rank 1, and fetches it back; two copies may be under way in each direction."""

    def __init__(self, model: nn.Module) -> None:
        self.stays = {p.data_ptr() for p in model.parameters()}
        self.leaving: deque[Any] = deque()
        self.known: dict[int, tuple[Any, int, int]] = {}  # of a storage: itself, version, number
        self.shapes: list[torch.Size] = []
        self.uses: list[int] = []
        self.coming: dict[int, tuple[Any, torch.Tensor]] = {}
        super().__init__(self.send, self.fetch)

    def send(self, x: torch.Tensor) -> Any:
        """The number under which rank 1 keeps x; x itself where it stays."""
        import torch.distributed as dist

        if x.data_ptr() in self.stays or x.nbytes < SMALL:
            return x
        storage, version, number = self.known.get(x.data_ptr(), (lambda: None, 0, 0))
        if storage() is not None and version == version_of(x) and self.shapes[number] == x.shape:
            self.uses[number] += 1
            return number
        number = len(self.shapes)
        self.known[x.data_ptr()] = weakref.ref(x.untyped_storage()), version_of(x), number
        self.shapes.append(x.shape)
        self.uses.append(1)
        request(1, x.numel())
        self.leaving.append(dist.isend(x.contiguous().view(-1), 1))
        if len(self.leaving) > 2:
            self.leaving.popleft().wait()
        return number

    def fetch(self, number: Any) -> torch.Tensor:
        """What was sent; and the one before it, which backward wants next, starts on its way."""
        if isinstance(number, torch.Tensor):
            return number
        while self.leaving:
            self.leaving.popleft().wait()
        for one in (number, number - 1):
            if one >= 0 and self.uses[one] and one not in self.coming:
                self.coming[one] = self.start(one)
        work, x = self.coming[number]
        work.wait()
        self.uses[number] -= 1
        if not self.uses[number]:
            del self.coming[number]
        return x.view(self.shapes[number])

    def start(self, number: int) -> tuple[Any, torch.Tensor]:
        """Asks rank 1 for a copy."""
        import torch.distributed as dist

        request(2, number)
        x = torch.empty(self.shapes[number].numel())
        return dist.irecv(x, 1), x


def request(what: int, number: int = 0) -> None:
    """To rank 1: 1, so many numbers come; 2, that one is wanted; 0, the step is over."""
    import torch.distributed as dist

    dist.send(torch.tensor([what, number]), 1)


def host() -> None:
    """What rank 1 does: the host's memory."""
    import torch.distributed as dist

    kept: list[torch.Tensor] = []
    sending: list[Any] = []
    while True:
        dist.recv(asked := torch.empty(2, dtype=torch.int64), 0)
        what, number = asked.tolist()
        if what == 0:
            for work in sending:
                work.wait()
            return
        if what == 1:
            kept.append(torch.empty(number))
            dist.recv(kept[-1], 0)
        else:
            sending.append(dist.isend(kept[number], 0))
