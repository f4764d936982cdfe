"""One step round a ring, begun now and over later: tensors go to the right-hand neighbour, and as many come from the
left. What a rank computes between the two hides the messages: ring attention, and the rings of asynchronous tensor
parallelism.
"""

from __future__ import annotations

from typing import Generic, TypeVar, cast

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from dtcourse.collectives import p2p

Tensors = TypeVar("Tensors", bound=tuple[Tensor, ...])


class Transfer(Generic[Tensors]):
    """Tensors on their way to the right-hand neighbour, and as many of the same shapes that come from the left.

    tensors: a message each; they must stay unchanged until `wait()` returns
    name: of the operation that the messages belong to, unless it is called inside of one
    """

    def __init__(
        self, tensors: Tensors, group: ProcessGroup | None = None, name: str = "transfer"
    ) -> None:
        rank, ranks = p2p.rank(group), p2p.size(group)
        right, left = (rank + 1) % ranks, (rank - 1) % ranks
        self.arriving = cast(Tensors, tuple(torch.empty_like(t) for t in tensors))
        with p2p.operation(name), p2p.batch(group):
            self.works = [p2p.irecv(t, left, group, tag=i) for i, t in enumerate(self.arriving)]
            self.works += [p2p.isend(t, right, group, tag=i) for i, t in enumerate(tensors)]

    def wait(self) -> Tensors:
        """What has come. What was sent is let go."""
        while self.works:
            self.works.pop(0).wait()
        return self.arriving
