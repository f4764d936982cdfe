"""What one node's actor says, and what is said of one that has gone: a Log (scheduler.py)."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

from dtcourse.launch import failures
from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster.ray_actor import Heard, Place

DECIDES = (
    3.0  # seconds in which Ray may still say that an actor's node has gone, and not the actor alone
)


class RayLog:
    """Asks one actor again and again what is new. One question is always on its way.

    place: where the actor is, as soon as Ray has put it somewhere
    ranks: those of its node
    met:   where node 0's agent listens, as soon as it has said so
    code:  with which the agent has ended
    lost:  how the actor was lost
    """

    def __init__(
        self, ray: Any, actor: Any, ranks: range, lost_name: Callable[[Place], str | None]
    ) -> None:
        self.ray, self.actor, self.ranks, self.lost_name = ray, actor, ranks, lost_name
        self.place: Place | None = None
        self.met: tuple[str, int] | None = None
        self.code: int | None = None
        self.lost = self.wrote = ""
        self.sign = (0, 0)  # changes with each answer
        self._frames = 0
        self._has_failed = self._has_answered = False
        self._gone_since: float | None = None
        self._question = actor.place.remote()

    def begin(self, started: Any) -> None:
        """Asks what is new as soon as the agent has been started."""
        self._question = started

    def _ask(self) -> None:
        self._question = self.actor.hear.remote(self._frames)

    def new(self) -> Iterator[Callable[[], Any]]:
        """What has been said since the last look, in order."""
        if self._question is None or self.lost or self.code is not None:
            return
        ready, _ = self.ray.wait([self._question], timeout=0)
        if not ready:
            return
        try:
            said = self.ray.get(self._question)
        except self.ray.exceptions.ActorUnavailableError:
            self._ask()  # the connection broke: Ray will say whether the actor has
            return
        except self.ray.exceptions.RayError as error:
            yield from self._on_loss(error)
            return
        self.sign = (self.sign[0] + 1, 0)
        if isinstance(said, Place):
            self.place, self._question = said, None
            return
        if said is None:  # it has been started
            self._ask()
            return
        yield from self._on_answer(said)

    def _on_answer(self, heard: Heard) -> Iterator[Callable[[], Any]]:
        self.met = heard.meeting or self.met
        for stream, buffers in heard.frames[self._frames - heard.first :]:
            self._frames += 1

            def unpack(stream: bytes = stream, buffers: list[bytearray] = buffers) -> Any:
                word, content = pickle.loads(stream, buffers=buffers)
                self._has_answered |= word in (words.RESULTS, words.FAILED, words.TIMEOUT)
                return word, content

            yield unpack
        if heard.code is None:
            self._ask()
            return
        self.code, self.wrote = heard.code, heard.wrote
        if heard.code < 0 and not self._has_answered:
            yield self._failed(f"{failures.exit_summary(heard.code)}, with its agent")

    def _on_loss(self, error: Exception) -> Iterator[Callable[[], Any]]:
        """Ray has lost the actor: with its node, or alone."""
        if self.place is None or isinstance(error, self.ray.exceptions.RayTaskError):
            self.lost = "never began"
            text = str(error).strip().splitlines()
            yield lambda: (
                words.REFUSED,
                f"could not begin: Ray's actor for {self._ranks()} failed: {text[-1] if text else error!r}. Each of "
                "the cluster's machines needs the course in the Python that runs Ray there",
            )
            return
        name = self.lost_name(self.place)
        self._gone_since = self._gone_since or time.monotonic()
        if name is not None:
            self.lost = f"was lost with its node, {name}"
        elif time.monotonic() - self._gone_since < DECIDES and "node" in str(error).lower():
            return  # the question stays, and so does its answer
        elif "running low on memory" in str(error):
            self.lost = "was killed: its node ran low on memory, and Ray ended its actor"
        else:
            self.lost = (
                "was killed: its node's actor died (kill -9, or the system ran out of memory)"
            )
        if not self._has_answered:
            yield self._failed(self.lost)

    def _ranks(self) -> str:
        shown = ", ".join(map(str, self.ranks))
        return f"rank {shown}" if len(self.ranks) == 1 else f"ranks {shown}"

    def _failed(self, summary: str) -> Callable[[], Any]:
        when = time.time()
        failed = [failures.Failure(index, summary, when=when) for index in self.ranks]
        return lambda: (words.FAILED, failed)
