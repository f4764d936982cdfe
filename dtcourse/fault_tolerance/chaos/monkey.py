"""The monkey: a thread beside the launcher that carries out a plan against a run, by its process ids and its files.

    with Monkey(recovery, plan(seed, 200), seed) as monkey:
        run = recovery.run()
    print(recovery.log)                    # its lines are among the others

It looks at the names in the checkpoints' folder to see how far the run is, and whether a save is under way. It asks the
ranks nothing, and they do not know of it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol

from dtcourse.fault_tolerance import folders
from dtcourse.fault_tolerance.chaos.faults import KINDS, Reach
from dtcourse.fault_tolerance.chaos.plans import Strike
from dtcourse.fault_tolerance.run_log import Goodput, RunLog

LOOK = 0.002  # seconds between two looks at a folder
BEFORE = "before it: "  # what a line begins with of a kill that only leads to a recovery


class KeptGoing(Protocol):
    """A run that comes through failures: a Recovery, or an ElasticRecovery.

    pids: of the ranks that train, by rank; none between two starts
    """

    folder: Path
    log: RunLog
    starts: int
    failures: int

    @property
    def pids(self) -> tuple[int, ...]: ...
    @property
    def goodput(self) -> Goodput: ...


@dataclass(frozen=True)
class Act:
    """What the monkey has done.

    strike:   of which
    kind:     one of its kinds, or the kill before a recovery
    came_off: whether there was still something to do it to
    before:   whether it is that kill
    """

    strike: Strike
    kind: str
    came_off: bool
    before: bool = False


class Monkey:
    """Acts while its block lasts. What a plan has left then is left out.

    longest: seconds of a delay at most, and of a full disk: below what counts as stopped
    """

    def __init__(
        self, recovery: KeptGoing, strikes: Sequence[Strike], seed: int, longest: float = 1.0
    ) -> None:
        self.recovery, self.strikes, self.longest = recovery, list(strikes), longest
        self.acts: list[Act] = []
        self._draw = random.Random(f"monkey {seed}")
        self._later: list[tuple[float, Callable[[], object]]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go, name="dtcourse-monkey", daemon=True)

    def __enter__(self) -> Monkey:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _go(self) -> None:
        try:
            for strike in self.strikes:
                if not self._wait(partial(self._is_at, strike.at)):
                    return
                if not self._strike(strike):
                    return
        finally:
            self._wait(lambda: not self._later)
            self._undo(everything=True)

    def _strike(self, strike: Strike) -> bool:
        """False where the run was over before."""
        moment = {"save": self._is_saving, "recovery": self._is_recovering}.get(strike.moment)
        if strike.moment == "recovery":
            pids = self.recovery.pids
            rank = self._draw.randrange(len(pids) or 1)
            self._killed = pids[rank : rank + 1]
            self._act(strike, "kill", rank, BEFORE)
        if moment is not None and not self._wait(moment):
            return False
        time.sleep(strike.after)
        while not (size := len(self.recovery.pids)):
            if not self._wait(lambda: bool(self.recovery.pids)):
                return False
        ranks = self._draw.sample(range(size), size)
        how = {"save": "while it saves: ", "recovery": "while it recovers: "}.get(strike.moment, "")
        for number, kind in enumerate(strike.kinds):
            self._act(strike, kind, ranks[number % len(ranks)], how)
        return True

    def _act(self, strike: Strike, kind: str, rank: int, how: str) -> None:
        reach = Reach(
            self.recovery.pids, self.recovery.folder, self._draw, self._do_later, self.longest
        )
        try:
            done = KINDS[kind](reach, rank)
        except (OSError, IndexError) as error:  # a rank that has just gone, a file that has
            self.recovery.log.add("monkey", f"{how}{kind} of rank {rank} came too late: {error}")
            self.acts.append(Act(strike, kind, False, how == BEFORE))
            return
        self.recovery.log.add("monkey", how + done)
        self.acts.append(Act(strike, kind, True, how == BEFORE))

    # --- looking ----------------------------------------------------------------------------------------------

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Whether it came to be so before the run was over. Undoes meanwhile what is to be undone."""
        while not self._over.is_set():
            self._undo()
            if condition():
                return True
            self._over.wait(LOOK)
        return False

    def _is_at(self, step: int) -> bool:
        steps = folders.steps(self.recovery.folder)
        return bool(steps) and steps[-1] >= step and bool(self.recovery.pids)

    def _is_saving(self) -> bool:
        return any(self.recovery.folder.glob(f"{folders.WRITING}*")) and bool(self.recovery.pids)

    def _is_recovering(self) -> bool:
        pids = self.recovery.pids
        return bool(pids) and not set(pids) & set(self._killed)

    # --- undoing ----------------------------------------------------------------------------------------------

    def _do_later(self, seconds: float, act: Callable[[], object]) -> None:
        self._later.append((time.monotonic() + seconds, act))

    def _undo(self, everything: bool = False) -> None:
        now = time.monotonic()
        due = [one for one in self._later if everything or one[0] <= now]
        self._later = [one for one in self._later if one not in due]
        for _, act in due:
            with suppress(ProcessLookupError):  # its rank is gone
                act()
