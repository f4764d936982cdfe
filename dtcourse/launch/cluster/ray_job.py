"""One job on Ray: a placement group with a bundle for each node, and in each an actor. A Transport."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from dtcourse.launch.cluster import call as words
from dtcourse.launch.cluster import ray_connection
from dtcourse.launch.cluster.call import Call
from dtcourse.launch.cluster.ray_actor import NodeActor, Place
from dtcourse.launch.cluster.ray_log import RayLog
from dtcourse.launch.cluster.settings import Settings
from dtcourse.launch.cluster.station import Station

MINUTE = 60.0
GOES = 15.0  # seconds in which actors must have left their nodes; then Ray is asked to kill them


class RayJob:
    """From the reservation until nothing is left.

    number: Ray's identifier of the placement group, the beginning of it
    logs:   by node
    state:  PENDING, RUNNING, or one of ray.OVER
    """

    def __init__(self, ray: Any, folder: Path, call: Call, settings: Settings) -> None:
        self.ray, self.call, self.settings = ray, call, settings
        self.names = {node.identifier: node.name for node in ray_connection.nodes(ray)}
        self.state, self.logs, self.actors = "PENDING", [], []
        self._began: float | None = None
        self._is_met = False
        self._connection = ray.get_runtime_context().get_job_id()
        parts = call.parts
        self.group = ray.util.placement_group(
            [_bundle(settings, len(ranks)) for ranks in parts],
            strategy="STRICT_SPREAD" if len(parts) > 1 else "PACK",
            name=folder.name,
        )
        self.number = self.group.id.hex()[:8]
        try:
            self._asked = ray.put((folder / words.CALL).read_bytes())
            self.actors = [self._actor(node, len(ranks)) for node, ranks in enumerate(parts)]
            self.logs = [
                RayLog(ray, actor, ranks, self._lost_name)
                for actor, ranks in zip(self.actors, parts, strict=True)
            ]
        except BaseException:
            self.end("FAILED")
            raise

    def _actor(self, node: int, ranks: int) -> Any:
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options = {
            "num_cpus": ranks * self.settings.cpus_per_rank,
            "num_gpus": self.settings.gpus_per_node,
            "max_restarts": 0,
            "max_concurrency": 3,  # what is new is asked for while it is told something
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                self.group, placement_group_bundle_index=node
            ),
        }
        return self.ray.remote(NodeActor).options(**options).remote()

    def advance(self) -> None:
        """Starts the agents when all actors have a place, and tells them where to meet."""
        if self.state == "PENDING" and self.logs and all(log.place for log in self.logs):
            self.state, self._began = "RUNNING", time.monotonic()
            self._start()
        if not self._is_met and self.logs and (where := self.logs[0].met):
            self._is_met = True
            for actor in self.actors[1:]:
                actor.meet.remote(where)
        if self.state == "RUNNING":
            codes = [log.code for log in self.logs]
            if any(codes) or any(log.lost for log in self.logs):
                self.state = "FAILED"
            elif None not in codes:
                self.state = "COMPLETED"
            elif self._began and time.monotonic() - self._began > self.settings.minutes * MINUTE:
                self.state = "TIMEOUT"

    def _start(self) -> None:
        for node, (actor, log) in enumerate(zip(self.actors, self.logs, strict=True)):
            place = log.place
            assert place is not None  # all have one
            visible = ",".join(place.gpus) if self.call.layout.kind != "cpu" else None
            station = Station(node, self._name(place), address=place.address)
            log.begin(actor.start.remote(self._asked, station, visible))

    def _name(self, place: Place) -> str:
        """A node's name, which stays that: of two of one name Ray's would change when the other is lost."""
        return self.names.get(place.node, place.address)

    def _lost_name(self, place: Place) -> str | None:
        """The name of a node that is lost; None for one that lives."""
        return None if ray_connection.lives(self.ray, place.node) else self._name(place)

    def where(self) -> list[str]:
        """The names of its nodes, as far as they are known."""
        return list(dict.fromkeys(self._name(log.place) for log in self.logs if log.place))

    def lost(self) -> list[str]:
        """The names of those that are lost."""
        places = {log.place.node: log.place for log in self.logs if log.place}
        return sorted(filter(None, map(self._lost_name, places.values())))

    def wrote(self) -> str:
        """The last lines that the agents wrote outside any rank."""
        lines = [line for log in self.logs for line in log.wrote.splitlines()[-8:]]
        text = "".join(f"\n  {line}" for line in dict.fromkeys(lines))
        return f"; its agents wrote:{text}" if text else ""

    def end(self, state: str) -> None:
        """Ends the ranks, the actors and the reservation, whatever of them there still is."""
        if self.state not in ("COMPLETED", "FAILED", "TIMEOUT"):
            self.state = state
        actors, self.actors = self.actors, []
        if not self._is_connected():  # Ray has ended all that was this connection's
            return
        with suppress(Exception):
            placed = [
                actor
                for actor, log in zip(actors, self.logs, strict=False)
                if log.place and not log.lost
            ]
            closed = [actor.close.remote() for actor in placed]
            self.ray.wait(closed, num_returns=len(closed), timeout=GOES) if closed else None
        for actor in actors:
            with suppress(Exception):
                self.ray.kill(actor)
        with suppress(Exception):
            self.ray.util.remove_placement_group(self.group)
            deadline = time.monotonic() + GOES
            while self._group_state() != "REMOVED" and time.monotonic() < deadline:
                time.sleep(0.05)

    def _is_connected(self) -> bool:
        """Whether this process still has the connection by which it has the actors."""
        ray = self.ray
        return ray.is_initialized() and ray.get_runtime_context().get_job_id() == self._connection

    def is_reserved(self) -> bool:
        """Whether it has its nodes."""
        return self._group_state() == "CREATED"

    def _group_state(self) -> str:
        return str(self.ray.util.placement_group_table(self.group).get("state", "REMOVED"))


def _bundle(settings: Settings, ranks: int) -> dict[str, float]:
    """What one node gives to so many ranks."""
    wanted = {
        "CPU": float(ranks * settings.cpus_per_rank),
        "GPU": float(settings.gpus_per_node),
        "memory": ray_connection.memory(settings),
    }
    return {name: amount for name, amount in wanted.items() if amount}
