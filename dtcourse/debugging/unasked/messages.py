"""Bytes sent, against what is needed for that which was made of them.

What a program sends its peers for is seen by what it has afterwards: where each rank sent a tensor N - 1 times on, and
has the sum of all ranks' first tensors then (in a gradient, or in what it returns), the messages were an all-reduce,
which needs 2 (N - 1) / N of the tensor a rank and not N - 1 whole ones. Messages of which no such sum comes (blocks
that are gathered, keys and values that go round) are not judged.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from dtcourse.callers import callers
from dtcourse.debugging.sentences import line_in_words
from dtcourse.debugging.unasked.watch import unseen
from dtcourse.parameters.placement import local
from dtcourse.torch_private import tree_leaves

MOST, LARGEST = 256, 1 << 20  # messages, and elements of one, of which a copy is kept


class Sent(NamedTuple):
    """One message of this rank: to whom, from which line, and what."""

    to: int
    line: str
    what: torch.Tensor


class Sends:
    """Keeps copies of what this rank sends, and of the gradients that it makes steps with."""

    name = "bytes"

    def __init__(self) -> None:
        self._sent: list[Sent] = []
        self._gradients: list[torch.Tensor] = []
        self._handle: Any = None
        self._send: Any = None

    def begin(self) -> None:
        self._handle = register_optimizer_step_pre_hook(self._steps_next)
        self._send = dist.ProcessGroup.send
        send, note = self._send, self._note

        def watched(group: Any, tensors: Any, peer: int, *args: Any) -> Any:
            note(tensors, peer)
            return send(group, tensors, peer, *args)

        dist.ProcessGroup.send = watched  # type: ignore[method-assign, assignment]

    def end(self) -> tuple[list[Sent], list[torch.Tensor]]:
        dist.ProcessGroup.send = self._send  # type: ignore[method-assign]
        self._handle.remove()
        return self._sent, self._gradients

    @unseen
    def _note(self, tensors: Any, peer: int) -> None:
        tensor = tensors[0] if isinstance(tensors, (list, tuple)) else tensors
        if len(self._sent) < MOST and tensor.numel() <= LARGEST:
            self._sent.append(Sent(peer, line_in_words(callers()), tensor.detach().clone()))

    @unseen
    def _steps_next(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is not None and len(self._gradients) < MOST and self._sent:
                    self._gradients.append(local(p.grad).detach().clone())


def more_than_needed(seen: list[Any], results: list[Any]) -> str | None:
    """The first tensor of which a sum was made by sending the whole of it around."""
    ranks = len(seen)
    if ranks < 3:  # of two, each has to send the other the whole
        return None
    rounds = [list(_rounds(sent, ranks - 1)) for sent, _ in seen]
    for together in zip(*rounds, strict=False):
        first = [sent[0].what for sent in together]
        if len({tensor.shape for tensor in first}) > 1 or first[0].numel() < ranks:
            continue
        total = sum(tensor.double() for tensor in first)
        if all(_has(total, ranks, [seen[rank][1], results[rank]]) for rank in range(ranks)):
            size = first[0].numel() * first[0].element_size()
            return (
                f"Rank 0 sends a whole tensor of {first[0].numel():,} elements {ranks - 1} times at "
                f"{together[0][0].line}, {(ranks - 1) * size:,} bytes, and what all ranks have then is the sum "
                f"of their {ranks} tensors: an all-reduce in blocks sends {2 * (ranks - 1) * size // ranks:,} bytes."
            )
    return None


def _rounds(sent: list[Sent], length: int) -> Any:
    """Messages of one size to one peer from one line, so many at a time."""
    for _, same in groupby(sent, key=lambda one: (one.to, one.line, one.what.shape)):
        messages = list(same)
        for start in range(0, len(messages) - length + 1, max(length, 1)):
            yield messages[start : start + length]


def _has(total: Any, ranks: int, values: Any) -> bool:
    """Whether the sum, or the mean, is among a rank's tensors."""
    for tensor in tree_leaves(values):
        if isinstance(tensor, torch.Tensor) and tensor.numel() == total.numel():
            mine = tensor.detach().double().flatten()
            if any(torch.allclose(mine, total.flatten() / of, rtol=1e-4) for of in (1, ranks)):
                return True
    return False
