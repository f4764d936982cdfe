"""A failure on one rank raises on all: no rank is left waiting for a message that will never come.

Three things can go wrong, and each ends in the same way.

- A collective raises on one rank. That rank writes what happened into the store that formed the group, and closes
  its connections. Every rank that waits for it sees the connection close, reads the store, closes its own
  connections in turn and raises, so the news reaches whoever waits for anybody who waits for the failed rank.
- A rank dies. Its connections close by themselves; the first to notice writes into the store whom it lost. Where gloo
  does not notice, launch may have told who it was (launch/deaths.py): who waits for it closes its own.
- The ranks disagree: other shapes, other dtypes, another operation, a call left out. No message of one operation can
  be received by another (channel.py sees to that), so they wait. A rank that has waited for a second writes into the
  store in what; when two ranks turn out to wait in different calls at the same place, all raise ValueError with both.

The first report wins, and everyone raises that one. A group that has failed stays failed. It costs nothing while all
goes well: the store is asked only by a rank that has already waited for a second.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from dtcourse import torch_private
from dtcourse.collectives.wire import guarding

Splits = tuple[list[int], list[int]]
PATIENCE = 1.0  # seconds of waiting before a rank asks the others what they wait in
_CLOSING_TAG = 0x7FFFFFFF  # channel.py uses smaller ones
EVERYBODY = -1  # a wait for all ranks of the group


class PeerFailure(dist.DistBackendError):
    """Another rank failed in a collective that this rank took part in. A RuntimeError."""


class Guard:
    """Watches over one group on one rank.

    inner: the backend whose connections are closed when the group fails
    store: shared by the group's ranks; global_ranks: their ranks in the default group, for messages
    """

    def __init__(
        self, inner: Any, store: dist.Store, rank: int, size: int, global_ranks: list[int]
    ) -> None:
        self.failure: BaseException | None = None
        self.rank, self.size = rank, size
        self.global_ranks = global_ranks
        self._inner = inner
        self._store = store
        self._lock = threading.RLock()
        self._waits: dict[int, list[_Wait]] = {}  # by thread, the innermost last
        self._closed = False
        store.set(f"formed/{rank}", "")
        guarding.watch(self)

    def name(self, rank: int) -> str:
        """How a message names a group rank: by its rank in the default group."""
        return f"rank {self.global_ranks[rank]}"

    # --- waiting ---

    def begin(
        self, place: str, what: str, splits: Splits | None = None, peer: int | None = EVERYBODY
    ) -> None:
        """The calling thread begins what may wait for other ranks.

        place: the same on all ranks that ought to meet here ("operation 5", "messages from rank 0 to rank 1")
        what:  what must then be the same on all of them ("all_reduce of 10 float32")
        splits: elements that this rank sends to, and receives from, each rank of the group: for an all-to-all
        peer:   of a message, None where any rank may send it
        """
        wait = _Wait(place, what, splits, time.monotonic(), peer)
        self._waits.setdefault(threading.get_ident(), []).append(wait)

    def end(self) -> None:
        """This thread need not wait any more."""
        wait = self._waits[threading.get_ident()].pop()
        if wait.published:
            with contextlib.suppress(RuntimeError):
                self._store.delete_key(self._key(wait.place, self.rank))

    # --- failing ---

    def fail(self, error: BaseException, what: str) -> BaseException:
        """Tells the others that this rank failed in `what`, and returns what to raise here."""
        with self._lock:
            if self.failure is None:
                text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                self._report("failed", f"{self.name(self.rank)} failed in {what}: {text}")
                self.failure = error
            self.close()
            return self.failure

    def lost(self, error: BaseException, peer: int | None, what: str) -> BaseException:
        """The connection to `peer` broke during `what`. Finds out why, and returns what to raise here."""
        with self._lock:
            if self.failure is None:
                whom = "another rank" if peer is None else self.name(peer)
                first_line = str(error).strip().splitlines()[0] if str(error).strip() else ""
                how = "waited in vain for" if "imed out" in first_line else "lost"
                report = self._report(
                    "lost", f"{self.name(self.rank)} {how} {whom} in {what} ({first_line})"
                )
                self.failure = self._as_error(report)
            self.close()
            return self.failure

    def disagree(self, text: str) -> None:
        """The ranks are not in the same call, if no other report came first."""
        with self._lock:
            if self.failure is None:
                self.failure = self._as_error(self._report("disagree", text))
            self.close()

    def hear_of_dead(self, dead: Mapping[int, str]) -> None:
        """Who has died, by rank of the default group, and how: fails if one of them has been waited for in vain."""
        gone = {r for r, number in enumerate(self.global_ranks) if number in dead}
        others = set(range(self.size)) - {self.rank}
        for wait in self._all_waits() if gone and self.failure is None else ():
            waited_for = gone & ({wait.peer} if wait.peer not in (None, EVERYBODY) else others)
            if not waited_for or (wait.peer is None and waited_for != others):
                continue
            if time.monotonic() - wait.since >= PATIENCE:
                rank = min(waited_for)
                whom = f"{self.name(rank)}, which {dead[self.global_ranks[rank]]}"
                said = f"{self.name(self.rank)} waited in vain for {whom}"
                with self._lock:
                    self.failure = self.failure or self._as_error(
                        self._report("lost", f"{said}, in {wait.what}")
                    )
                    self.close()
                return

    def longest_wait(self) -> float:
        """Seconds for which a thread of this rank has waited for others by now."""
        now = time.monotonic()
        return max((now - wait.since for wait in self._all_waits()), default=0.0)

    def _all_waits(self) -> list[_Wait]:
        return [wait for waits in list(self._waits.values()) for wait in list(waits)]

    def _report(self, kind: str, text: str) -> dict[str, str]:
        """Writes this rank's report, if it is the first, and returns the first."""
        mine = json.dumps({"kind": kind, "text": text})
        try:
            return json.loads(self._store.compare_set("failure", "", mine))
        except (RuntimeError, ValueError):  # the store went down together with its rank
            return json.loads(mine)

    @staticmethod
    def _as_error(report: dict[str, str]) -> BaseException:
        if report["kind"] == "disagree":
            return ValueError(report["text"])
        return PeerFailure(f"the collective was given up: {report['text']}")

    def close(self) -> None:
        """Closes all connections of this rank, so that whoever waits on them, here or there, is woken."""
        if self._closed:
            return
        self._closed = True
        # A rank that still forms the group would lose its connections before it could learn why.
        with contextlib.suppress(RuntimeError):
            self._store.wait([f"formed/{r}" for r in range(self.size)], timedelta(seconds=10))
        torch_private.close_connections(self._inner, self.rank, self.size, _CLOSING_TAG)

    # --- finding out who disagrees ---

    def check(self) -> None:
        """Called by the watching thread."""
        if self.failure is not None or self.size < 2:
            return
        now = time.monotonic()
        for wait in self._all_waits():
            if now - wait.since < PATIENCE:
                continue
            if not wait.published:
                wait.published = True
                self._store.set(
                    self._key(wait.place, self.rank), json.dumps([wait.what, wait.splits])
                )
                continue
            if self._store.check(["failure"]):  # whoever failed could not wake this rank
                self.disagree("")
                return
            report = self._compare(wait)
            if report and wait.suspicious:
                self.disagree(report)
                return
            wait.suspicious = bool(report)  # asked once more, for the ranks that are about to write

    def _compare(self, wait: _Wait) -> str:
        """What is wrong between the ranks that wait at the same place; nothing where they are only waiting."""
        said: dict[int, tuple[str, Splits | None]] = {}
        for rank in range(self.size):
            key = self._key(wait.place, rank)
            if self._store.check([key]):
                said[rank] = tuple(json.loads(self._store.get(key)))
        if len({what for what, _ in said.values()}) > 1:
            lines = [f"{self.name(rank)}: {what}" for rank, (what, _) in said.items()]
            return f"the ranks disagree on {wait.place}: " + "; ".join(lines)
        for sender, (what, sizes) in said.items():
            for receiver, (_, other) in said.items():
                if sizes and other and sizes[0][receiver] != other[1][sender]:
                    return (
                        f"the split sizes of an {what} do not fit: {self.name(sender)} sends "
                        f"{sizes[0][receiver]} elements to {self.name(receiver)}, which expects "
                        f"{other[1][sender]}"
                    )
        return ""

    @staticmethod
    def _key(place: str, rank: int) -> str:
        return f"waiting/{place}/{rank}"


class _Wait:
    __slots__ = ("peer", "place", "published", "since", "splits", "suspicious", "what")

    def __init__(
        self, place: str, what: str, splits: Splits | None, since: float, peer: int | None
    ) -> None:
        self.place, self.what, self.splits, self.since = place, what, splits, since
        self.peer = peer
        self.published = self.suspicious = False
