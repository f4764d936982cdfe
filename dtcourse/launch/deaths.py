"""The dead of a launch, told to those that live: with on_failure="continue" alone, since else all ranks end.

gloo notices by its connections that a rank has died, and now and then it does not (2 of 26 runs of plain torch; or a
child that the rank has forked keeps its connections open). Whoever waits for it would wait for ever. But launch knows
who has died, and how. It writes that into the store where the ranks have met, and each rank looks there when it has
waited for a second (lost_peers.py). A healthy launch asks nothing.
"""

from __future__ import annotations

import json
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any

from dtcourse.launch import rendezvous

_COUNT, _DEATH = "dtcourse/deaths", "dtcourse/death"
_LIMIT = timedelta(seconds=10)


def tell(where: str, rank: int, how: str) -> None:
    """In the launcher: a rank has died. where: rank.Settings.rendezvous;  how: "was killed by SIGKILL"."""
    if where.startswith("tcp://"):  # to connect may take long, and there is more to do than this
        threading.Thread(target=_tell, args=(where, rank, how), daemon=True).start()
    else:
        _tell(where, rank, how)


def _tell(where: str, rank: int, how: str) -> None:
    # Suppressed where the store has gone, and with it those that would read.
    with suppress(RuntimeError, OSError), rendezvous.Visit(where, _LIMIT) as visit:
        number = visit.store.add(_COUNT, 1)
        visit.store.set(f"{_DEATH}/{number}", json.dumps([rank, how.splitlines()[0]]))


class Deaths:
    """In a rank: who has died by now, and how.

    where: the store's place, as rendezvous.join takes it;  store: where the rank has joined it already
    """

    def __init__(self, where: str = "", store: Any = None) -> None:
        self._where, self._store = where, store
        self._known: dict[int, str] = {}
        self._count = 0
        self._lock = threading.Lock()

    def read(self) -> dict[int, str]:
        """By rank. Asks the store, over a connection that is made when it is first needed."""
        with self._lock, suppress(RuntimeError, OSError):
            store: Any = self._store
            if store is None:
                store = self._store = rendezvous.join(self._where, _LIMIT)
            while store.check([key := f"{_DEATH}/{self._count + 1}"]):
                rank, how = json.loads(store.get(key))
                self._known[rank] = how
                self._count += 1
        return dict(self._known)


def watch(where: str, wanted: bool) -> None:
    """In a rank: from here on it hears of them while it waits for one, if that is wanted. Else nothing is loaded."""
    if wanted:
        from dtcourse.launch import lost_peers

        lost_peers.start(Deaths(where))
