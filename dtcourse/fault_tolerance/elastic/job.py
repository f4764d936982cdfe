"""An elastic job: workers that train together come and go, and training goes on.

    with ElasticJob(train, 4) as job:         # train(elastic, ...) in four workers
        job.kill(2)                           # or it dies by itself: the other three go on
        worker = job.add()                    # joins them between two steps, and gets the state from them
        job.ask_to_leave(0)                   # leaves between two steps
        outcomes = job.result()               # by worker: what train returned, or a RankFailure

Each worker is a launch of one rank, so it is started, watched and ended as any rank. The job holds the store, hears of
deaths from launch, and says who is in the next generation (generations.py).
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from dtcourse.fault_tolerance.elastic.generations import JobsEnd, WorkersEnd
from dtcourse.fault_tolerance.elastic.roster import Generation, Roster
from dtcourse.fault_tolerance.elastic.worker import Elastic
from dtcourse.fault_tolerance.holdings import StateLost
from dtcourse.launch import Handle, RankFailure, launch, rendezvous, send_message

_TICK = 0.01


class _Pid(NamedTuple):
    """What a worker says first: where a signal finds it."""

    pid: int


def _work(where: str, worker: int, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """In a worker's process."""
    # Imported before there is a group: its functions keep the default group of that moment.
    import torch.distributed.nn  # noqa: F401

    from dtcourse.launch import lost_peers

    send_message(_Pid(os.getpid()))
    end = WorkersEnd(where, worker)
    lost_peers.start(end)
    return function(Elastic(end), *args, **kwargs)


class ElasticJob:
    """Starts `size` workers that run function(elastic, *args, **kwargs): see worker.py.

    least:        fewer do not train: they wait for one who joins
    most:         more do not train: the others wait until one is lost; default: no limit
    replacements: so many workers that failed are replaced by new ones, by the job itself; none for StateLost
    timeout:      seconds that a worker may run; None: no limit
    on_message:   called as on_message(worker, message) for each send_message

    outcomes: of workers that have ended, what they returned or how they failed
    """

    def __init__(
        self,
        function: Callable[..., Any],
        size: int,
        /,
        *args: Any,
        least: int = 1,
        most: int | None = None,
        replacements: int = 0,
        timeout: float | None = 120.0,
        on_message: Callable[[int, Any], None] | None = None,
        **kwargs: Any,
    ) -> None:
        for name, value, lowest in (
            ("size", size, 1),
            ("least", least, 1),
            ("replacements", replacements, 0),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ValueError(f"{name} is a number of workers, {lowest} or more; got {value!r}")
        if most is not None and not least <= most:
            raise ValueError(
                f"most={most} workers are fewer than least={least}: nobody would ever train"
            )
        if size < least:
            raise ValueError(
                f"{size} workers are started and least={least} are needed: start {least}"
            )
        self.least, self.replacements = least, replacements
        self.outcomes: dict[int, Any] = {}
        self._call, self._timeout, self._on_message = (function, args, kwargs), timeout, on_message
        self._home = rendezvous.Rendezvous()
        self._end = JobsEnd(self._home.path)
        self._lock = threading.RLock()
        self._workers: dict[int, Handle[Any]] = {}
        self._pids: dict[int, int] = {}
        self._roster = Roster(self._end, least, most)
        self._closed = threading.Event()
        self._error: BaseException | None = None
        try:
            for _ in range(size):
                self._roster.expected.add(self.add())
        except BaseException:
            self._end.close()
            self._home.close()
            raise
        self._thread = threading.Thread(target=self._watch, name="dtcourse-elastic", daemon=True)
        self._thread.start()

    @property
    def generations(self) -> list[Generation]:
        """Those so far, the running one last."""
        return self._roster.generations

    # --- what may be asked of it ------------------------------------------------------------------------------

    def add(self) -> int:
        """Starts another worker, which joins between two steps; returns its number."""
        with self._lock:
            if self._closed.is_set():
                raise ValueError("the job is over: nobody can join it")
            worker = len(self._workers)
            self._workers[worker] = launch(
                _work, 1, self._home.path, worker, *self._call,
                init=False, device="cpu", wait=False, timeout=self._timeout,
                on_message=lambda _, message: self._hear(worker, message),
            )  # fmt: skip
            return worker

    def ask_to_leave(self, worker: int) -> None:
        """Has a worker leave between two steps. The state stays with the others. ValueError for the last one."""
        with self._lock:
            living = set(self.living()) - self._roster.leavers
            if worker not in living:
                raise ValueError(
                    f"worker {worker} is not among those that run and stay: {sorted(living)}"
                )
            if len(living) <= self.least:
                raise ValueError(
                    f"{len(living)} workers run and stay, and least={self.least} are needed: add one before worker "
                    f"{worker} leaves"
                )
            self._roster.leavers.add(worker)
            self._roster.decide(self.living())

    def kill(self, worker: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to a worker, as whatever kills one would. ValueError for one that does not run."""
        with self._lock:
            if worker not in self.living() or worker not in self._pids:
                raise ValueError(f"worker {worker} is not among those that run: {self.living()}")
            with suppress(ProcessLookupError):  # it has gone just now, by itself
                os.kill(self._pids[worker], number)

    def living(self) -> list[int]:
        """The workers that run."""
        with self._lock:
            return [worker for worker in self._workers if worker not in self.outcomes]

    def waiting(self) -> list[int]:
        """The workers that wait to join. The others have been told to change after their step, if there is room."""
        with self._lock:
            self._roster.decide(self.living())
            return self._roster.waiting(self.living())

    def pids(self) -> dict[int, int]:
        """The processes of the workers that run and have said so."""
        with self._lock:
            return {worker: self._pids[worker] for worker in self.living() if worker in self._pids}

    def result(self, timeout: float | None = None) -> dict[int, Any]:
        """Waits until all workers have ended; returns what each returned, a RankFailure where one failed.

        Raises that of the last one to fail where none has returned; TimeoutError where some still run.
        """
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutError(f"workers {self.living()} still run after {timeout:g} s")
        if self._error is not None:
            raise self._error
        if all(isinstance(outcome, RankFailure) for outcome in self.outcomes.values()):
            raise list(self.outcomes.values())[-1]
        return dict(self.outcomes)

    def __enter__(self) -> ElasticJob:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends all workers that still run."""
        self._closed.set()
        for worker in self.living():
            self._workers[worker].cancel()
        self._thread.join()
        self._end.close()
        self._home.close()

    # --- the thread -------------------------------------------------------------------------------------------

    def _hear(self, worker: int, message: Any) -> None:
        if isinstance(message, _Pid):
            self._pids[worker] = message.pid
        elif self._on_message is not None:
            self._on_message(worker, message)

    def _watch(self) -> None:
        try:
            while self.living():
                with self._lock:
                    self._collect()
                    self._roster.decide(self.living())
                if self._closed.wait(_TICK):
                    return
        except BaseException as error:  # told by result()
            self._error = error
        finally:
            self._closed.set()

    def _collect(self) -> None:
        """Notes who has ended, tells the others who has died, and replaces it."""
        for worker in self.living():
            if not self._workers[worker].done():
                continue
            try:
                self.outcomes[worker] = self._workers[worker].result()[0]
            except Exception as error:
                self.outcomes[worker] = error
                first = error.failures[0] if isinstance(error, RankFailure) else None
                how = first.summary if first else str(error)
                self._end.tell_of_death(worker, how)
                # Another one would find no state either.
                lost = first is not None and isinstance(first.exception, StateLost)
                if self.replacements and not lost:
                    self.replacements -= 1
                    self.add()
            self._roster.expected.discard(worker)
