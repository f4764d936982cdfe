"""How a node's part of a job ends before its function does: by a signal of Slurm's, or with its notebook.

Slurm sends SIGTERM before it kills (scancel, the time limit, preemption) and, where `signal` asks for it, another
signal some time before the limit. Both are the ranks': a function that has a handler saves what it needs. So the agent
itself obeys neither. It sees that each rank gets the signal once, keeps what the ranks still say, and goes when they
have gone; Slurm's own clock (KillWait, a partition's GraceTime) is the grace.

The signals are blocked in the agent and in all that it splits off before a rank, and one thread waits for them: the
main thread may be anywhere.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil

from dtcourse.launch import server
from dtcourse.launch.cluster.presence import Listener

LOOK = 5.0  # seconds between two looks at the notebook's heartbeat, at most
TREE = 0.2  # seconds in which Slurm has signalled all processes of a task
LONG = 24 * 3600.0  # seconds; Slurm kills before
MARGIN = 10.0  # seconds before the limit by which a job must have asked to be started again


def hold(warning: str) -> Callable[[], None] | None:
    """Blocks the signals here, and gives them their usual meaning for the ranks, which unblock them.

    warning: the name of the signal that comes before the time limit; ranks without a handler ignore it

    Returns submitit's handler, where it is submitit that started us, as a function that has Slurm start the job again.
    """
    again = _of_submitit() if "SUBMITIT_FOLDER" in os.environ else None
    resource_tracker.ensure_running()  # which unblocks SIGTERM, so before it is blocked
    before = signal.getsignal(again) if again else None
    # submitit's handlers would write into the ranks' output
    for number in {signal.SIGTERM, signal.SIGCONT} | ({again} if again else set()):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(_number(warning), signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, _number(warning)})
    return partial(before, again, None) if again and callable(before) else None


def _of_submitit() -> signal.Signals:
    """The signal by which submitit has a job started again."""
    from submitit.core.job_environment import JobEnvironment

    return JobEnvironment._usr_sig()


def _number(warning: str) -> signal.Signals:
    return signal.Signals[f"SIG{warning}"]


class Ends:
    """Watches, in a thread, for what ends this node's part of a job early.

    warning: (name, seconds before the time limit) of Slurm's --signal
    requeue: has Slurm start the job again; None where it shall not
    on_silence: called when the notebook has been silent for `patience` seconds; then this process ends
    """

    def __init__(
        self,
        folder: Path,
        warning: tuple[str, float],
        requeue: Callable[[], None] | None,
        patience: float | None,
        on_silence: Callable[[], None],
    ) -> None:
        self.warning, self.seconds = _number(warning[0]), warning[1]
        self.requeue, self.on_silence = requeue, on_silence
        self.listener = Listener(folder, patience, time.monotonic())
        self.ranks: Callable[[], list[int]] = list  # the ranks that run: their process ids
        # waits, so many seconds at most, until the other nodes' ranks have left as well
        self.together: Callable[[float], None] = lambda _: None
        self.ending = threading.Event()  # a signal has come after which the job will not answer
        self.left = threading.Event()  # no rank runs
        self.left.set()
        self._thread = threading.Thread(target=self._watch, name="dtcourse-ends", daemon=True)

    def start(self) -> None:
        """To be called when all that is forked without its own exec has been forked."""
        self._thread.start()

    @contextmanager
    def over(self, ranks: Any) -> Iterator[Any]:
        """Around the ranks of one call: a processes.Ranks, entered."""
        self.left.clear()
        try:
            with ranks as entered:
                pids = [member.pid for member in entered.members]
                self.ranks = lambda: pids
                yield entered
        finally:
            self.ranks = list
            self.left.set()

    def wait_if_asked(self) -> None:
        """After ranks have failed: does not return where a signal has asked for that."""
        # It reaches the ranks and us at the same moment; the thread may need one to say so.
        if self.ending.wait(TREE):
            self.left.set()
            threading.Event().wait()  # the thread ends this process, or Slurm does

    def _watch(self) -> None:
        look = LOOK if self.listener.patience is None else min(LOOK, self.listener.patience / 4)
        while True:
            got = signal.sigtimedwait({signal.SIGTERM, self.warning}, look)
            if got is not None:
                self._obey(signal.Signals(got.si_signo))
            elif self.listener.is_silent(time.monotonic()):
                with suppress(Exception):
                    self.on_silence()
                os._exit(1)  # the ranks end with us

    def _obey(self, number: signal.Signals) -> None:
        is_warning = number == self.warning
        if not is_warning or self.requeue is not None:
            self.ending.set()
        time.sleep(TREE)
        if not _has_reached_all(number):
            for pid in self.ranks():
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
        if is_warning and self.requeue is not None:
            limit = time.monotonic() + max(1.0, self.seconds - TREE - MARGIN)
            self._wait_until_left(limit)
            self._leave_together(limit)
            try:
                self.requeue()
            except SystemExit:  # Slurm has taken it, and ends this try
                pass
            except Exception:
                os._exit(1)  # it was often enough, says submitit in the job's log
            self.requeue = None  # node 0 has asked for it
        elif not is_warning:
            self._wait_until_left(math.inf)
            if self.requeue is None:
                self._leave_together(time.monotonic() + LONG)
                os._exit(128 + signal.SIGTERM)
            # One that Slurm preempts is started again only if it is still there when its grace is over.
            threading.Event().wait()

    def _leave_together(self, limit: float) -> None:
        """The first task of a step that goes takes the others with it (--kill-on-bad-exit)."""
        with suppress(Exception):  # not all of them have left by then; or they are gone
            self.together(max(0.1, limit - time.monotonic()))

    def _wait_until_left(self, limit: float) -> None:
        """Until no rank runs, or the clock says `limit`. The main thread may wait for other nodes, and not say so."""
        while not self.left.wait(0.1) and time.monotonic() < limit:
            pids = self.ranks()
            if pids and not any(map(psutil.pid_exists, pids)):
                return


def _has_reached_all(number: signal.Signals) -> bool:
    """Whether Slurm has sent that signal to all processes of its task, as most clusters do, and not to us alone.

    The ranks' server has it blocked as well, so one that was sent to it is still waiting there.
    """
    with suppress(OSError, ValueError):
        for line in Path(f"/proc/{server.pid()}/status").read_text().splitlines():
            if line.startswith("ShdPnd:"):
                return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False
