"""A sharded parameter server without ranks of its own: every rank is a worker, and serves a part of the model besides.

    with ColocatedWorker(model, lambda parameters: torch.optim.SGD(parameters, lr=0.1)) as worker:
        for x, y in batches:
            model.zero_grad()
            loss(model(x), y).backward()
            worker.push()
            worker.pull()
    worker.report                            # of the part that this rank served

The server is a thread of the rank, with a lane of its own on an emulated clock. With synchronous updates it is an
all-reduce in other words: the push is a reduce-scatter, the pull an all-gather, and a rank sends as much as in a ring,
2 (p - 1) / p of the model's bytes, and 16 (p - 1) for headers, in 3 (p - 1) messages. (So does ZeRO-1; BytePS, Jiang et
al., OSDI 2020, mixes these servers with others.) What it has beyond an all-reduce is the rule: servers may update
without waiting. What it loses: with a rank a part of the model is gone, and all others end with ServerLost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import events
from dtcourse.asynchronous.parameter_servers.links import Link
from dtcourse.asynchronous.parameter_servers.serving import ServerReport
from dtcourse.asynchronous.parameter_servers.sharded_parameter_server import ShardServer
from dtcourse.asynchronous.parameter_servers.update_rules import Synchronous, UpdateRule
from dtcourse.asynchronous.parameter_servers.worker import Worker
from dtcourse.emulation import clock
from dtcourse.emulation.clock import Lane
from dtcourse.parameters.replicas import Group


class ColocatedWorker(Worker):
    """A worker and the server of a part, on every rank of the group. Use it as a context manager:
    its end waits for all.

    make_optimizer: as in ShardServer;  make_rule: -> a rule for this rank's server
    report:         what this rank's server did, once all workers have ended

    Raises ValueError and ServerLost as Worker and ShardServer do, and what this rank's own server raised.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        make_rule: Callable[[], UpdateRule] = Synchronous,
        group: Group = None,
    ) -> None:
        ranks = range(dist.get_world_size(group))
        link = Link(group)
        self._server = ShardServer(model, make_optimizer, make_rule(), ranks, group, link)
        super().__init__(model, ranks, group, link)
        self.report: ServerReport | None = None
        self._error: BaseException | None = None
        self._began = events.now()
        self._thread = threading.Thread(target=self._serve, daemon=True, name="dtcourse-server")
        self._thread.start()

    def _serve(self) -> None:
        try:
            with clock.on(Lane("server"), self._began):
                self.report = self._server.serve()
        except BaseException as error:
            self._error = error
            self._link.fail(error)

    def close(self) -> None:
        """Tells all servers that this worker has ended, and waits until this rank's own has no worker left."""
        super().close()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, trace)
        self._thread.join()
