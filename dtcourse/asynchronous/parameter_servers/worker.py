"""A worker: computes gradients of the parameters that it was given last, and never steps an optimizer.

`push` sends the gradient and returns; until `pull` there is time for what needs no parameters: the next batch, say.
`pull` waits for the answer, which the server's rule may put off (update_rules.py), and leaves it in the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any

import torch
from torch import nn

from dtcourse.asynchronous.parameter_servers.links import Link
from dtcourse.asynchronous.parameter_servers.roles import (
    DONE,
    GAVE_UP,
    GRADIENT,
    PULL,
    PUSH,
    flat_buckets,
    meet,
    part,
)
from dtcourse.collectives import p2p
from dtcourse.parameters.replicas import Group


class ServerLost(RuntimeError):
    """The connection to a parameter server is broken: this worker cannot go on."""


class Worker:
    """This rank's end of a parameter server. As a context manager it tells the server when training ends, or fails.

    model:  gets the server's parameters at once, and after each `pull`
    server: its rank in the group, or those of all servers (sharded_parameter_server.py)
    link:   where a server on this rank uses it too (colocated.py)
    timeout: seconds that a server may take to answer; as long as the group waits, where none are given

    Made at the same time as the server and the other workers; raises ValueError as they do. `push`, `pull` and `close`
    raise ServerLost where a server is gone, or has not answered in time. The second is needed too: gloo tells who waits
    for a process that has died, but not always where the message is posted in the moment of its death.
    """

    def __init__(
        self,
        model: nn.Module,
        server: int | Sequence[int] = 0,
        group: Group = None,
        link: Link | None = None,
        timeout: float | None = None,
    ) -> None:
        as_server = False if link is None else None
        self._servers = meet(model, server, group, as_server).servers
        self._link = Link(group) if link is None else link
        self._timeout = timedelta(seconds=timeout or 0)  # 0 is no limit, as in PyTorch
        self.num_pushed = 0
        self._gradients = flat_buckets(model)
        self._parameters = [bucket.empty() for bucket in self._gradients]
        self._under_way: list[tuple[int, Any]] = []
        self._closed = False

    def push(self) -> None:
        """Sends the gradients to the server. A parameter without one sends zeros.

        Raises ValueError where the last push has not been pulled, or after `close`.
        """
        self._check_open("push")
        if self._under_way:
            raise ValueError("push() twice: pull() the parameters in between")
        with torch.no_grad():
            for bucket in self._gradients:
                for view, parameter in zip(bucket.gradients(), bucket.parameters(), strict=True):
                    view.zero_() if parameter.grad is None else view.copy_(parameter.grad)
        header = torch.tensor([GRADIENT, self.num_pushed])
        for server, rank in enumerate(self._servers):
            try:
                with p2p.operation("push"):
                    sent = [self._link.isend(header, rank, PUSH)]
                    for bucket in self._gradients:
                        gradient = part(bucket.buffer(), server, len(self._servers))
                        sent.append(self._link.isend(gradient, rank, PUSH))
                with p2p.operation("pull"):
                    for flat in self._parameters:
                        parameters = part(flat, server, len(self._servers))
                        sent.append(self._link.irecv(parameters, rank, PULL))
            except RuntimeError as error:
                raise self._lost(rank, error) from error
            self._under_way += [(rank, work) for work in sent]
        self.num_pushed += 1

    def pull(self) -> None:
        """Waits for the servers' answer to the last push: the model has their parameters then.

        Raises ValueError where nothing was pushed.
        """
        self._check_open("pull")
        if not self._under_way:
            raise ValueError("pull() without a push(): the server answers each gradient once")
        for rank, work in self._under_way:
            self._wait(rank, work)
        self._under_way.clear()
        with torch.no_grad():
            for bucket, flat in zip(self._gradients, self._parameters, strict=True):
                for parameter, view in zip(bucket.parameters(), bucket.views(flat), strict=True):
                    parameter.copy_(view)

    def close(self) -> None:
        """Tells the servers that this worker has ended. Calling it again changes nothing."""
        if not self._closed and self._under_way:
            self.pull()
        self._end(DONE)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        elif not isinstance(error, ServerLost):
            self._end(GAVE_UP)

    def _end(self, word: int) -> None:
        if not self._closed:
            for rank, error in self._tell_all(word):
                raise self._lost(rank, error) from error

    def _tell_all(self, word: int) -> list[tuple[int, RuntimeError]]:
        """Tells every server, and returns those that are gone."""
        self._closed = True
        header, gone = torch.tensor([word, self.num_pushed]), []
        for rank in self._servers:
            try:
                with p2p.operation("push"):
                    self._link.isend(header, rank, PUSH).wait(self._timeout)
            except RuntimeError as error:
                gone.append((rank, error))
        return gone

    def _wait(self, rank: int, work: Any) -> None:
        try:
            work.wait(self._timeout)
        except RuntimeError as error:
            raise self._lost(rank, error) from error

    def _lost(self, rank: int, error: BaseException) -> ServerLost:
        """What to raise. Other servers must not wait for this worker."""
        if not self._closed:
            self._tell_all(GAVE_UP)
        why = str(error).strip().splitlines()[0]
        return ServerLost(
            f"parameter server rank {rank} is gone ({why}): this worker, rank {p2p.rank(self._link.group)}, has pushed "
            f"{self.num_pushed} gradients, and has the parameters of its last pull"
        )

    def _check_open(self, what: str) -> None:
        if self._closed:
            raise ValueError(
                f"{what}() after the worker has ended: make another Worker, with its servers"
            )
