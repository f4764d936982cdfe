"""Leaving in time: a scheduler says that it takes the nodes, all ranks save after one step, and the job comes back.

    with Preemption() as preemption:
        for step in range(state.load(found) if found else 0, last):
            ...
            if preemption.agreed(step):
                checkpoints.save(step, state.snapshot(), state.about())
                preemption.leave()                   # exit status 85: start me again

Slurm sends SIGTERM when it takes a node or cancels a job, and another signal before the time limit where it is asked
to (`--signal=URG@120`). A handler may run between any two operations, in the middle of an optimizer's step; so it sets
a flag, and the loop looks at the flag between steps. Ranks hear at different moments, some perhaps never: one that left
alone would leave the others waiting in a collective. So all ask each other, by one all-reduce of four bytes, and all go
by the same answer.

SIGURG is the usual one here, as it does nothing to a process that has no handler for it. SIGUSR1 is taken (`launch`
asks for stacks and flight records by it), and so is SIGUSR2 (submitit).

What starts the job again goes by the exit status:

    launch      run_until_done(lambda: launch(train, 4)), as it raises RankFailure; recovery.py survives failures too
    torchrun    --max-restarts=3, where the ranks were signalled: it starts all of them again. With
                TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, each start has a store of its own: in a shared one gloo may find
                the addresses of the ranks that have left
    Slurm       srun ...; [ $? -eq 85 ] && scontrol requeue $SLURM_JOB_ID

Where torchrun itself is signalled (the end of a job or a Pod), it hands SIGTERM on, kills the ranks after
--shutdown-timeout (30 s), ends with status 1, and starts nobody again: let the ranks leave a file that asks for it.
SIGURG it hands on only with --signals-to-handle=SIGTERM,SIGURG.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn, TypeVar

from dtcourse.launch import RankFailure
from dtcourse.parameters.agreement import on_any_rank
from dtcourse.parameters.replicas import Group
from dtcourse.torch_private import device_of_messages

REQUEUE = 85  # the exit status that asks for another start: none of the shell's or of a signal's
T = TypeVar("T")


class Preemption:
    """Hears the signals from the beginning of the block to its end, and asks all ranks between steps.

    warning: the signal besides SIGTERM that says that the end comes
    every:   ask after each so many steps: fewer messages, and a save up to so many steps later
    group:   the ranks that train; default: all

    heard: the signals that this rank itself has heard
    Raises ValueError outside the main thread, which alone gets signals, and for a signal that is taken.
    """

    def __init__(
        self,
        warning: signal.Signals = signal.SIGURG,
        every: int = 1,
        group: Group = None,
    ) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise ValueError(f"every is a number of steps, 1 or more; got {every!r}")
        if warning in (signal.SIGUSR1, signal.SIGKILL, signal.SIGSTOP):
            raise ValueError(
                f"{signal.Signals(warning).name} cannot be the warning: launch asks for stacks by SIGUSR1, and nobody "
                "hears SIGKILL or SIGSTOP. Take SIGURG"
            )
        self.signals = (signal.SIGTERM, signal.Signals(warning))
        self.every, self.group = every, group
        self.heard: list[signal.Signals] = []
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Preemption:
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                "only the main thread gets signals: enter Preemption there, where the training loop runs"
            )
        for number in self.signals:
            self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._before.clear()

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self.heard.append(signal.Signals(number))

    def agreed(self, step: int) -> bool:
        """Whether all ranks are to leave after this step, since one of them has heard a signal. Every rank calls it."""
        if step % self.every:
            return False
        return on_any_rank([bool(self.heard)], self.group, device_of_messages(self.group))[0]

    def leave(self) -> NoReturn:
        """Ends this rank, saying that it wants to be started again. Call it on every rank, when all is saved."""
        sys.exit(REQUEUE)


def run_until_done(start: Callable[[], T], attempts: int = 10) -> T:
    """Calls start(), a launch, until its ranks end otherwise than by `leave`; returns what it returned.

    Raises the RankFailure of ranks that failed, and the last one where so many attempts were not enough.
    """
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        raise ValueError(f"attempts is a number of starts, 1 or more; got {attempts!r}")
    for attempt in range(1, attempts + 1):
        try:
            return start()
        except RankFailure as failure:
            if attempt == attempts or not all_left(failure):
                raise
    raise AssertionError("the loop returns or raises")


def all_left(failure: RankFailure) -> bool:
    """Whether its ranks ended by `leave`, and none otherwise."""
    return all(_left(one.exception) for one in failure.failures)


def _left(error: BaseException | None) -> bool:
    return isinstance(error, SystemExit) and error.code == REQUEUE
