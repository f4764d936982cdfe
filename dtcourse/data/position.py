"""Where the reading of an epoch stands: one number, the same on every replica and valid for any number of them.

An epoch is an order of places that every replica computes alone, and replica r of p takes every p-th of them. So when
each replica has used k places, the first k * p of the order have been used, whoever used them. That product is all
that a checkpoint needs: 8 bytes, however large the data. Who goes on deals out the places after it.
"""

from __future__ import annotations

from typing import Any


class Position:
    """What DistributedSampler (places are samples) and TokenBatchSampler (places are batches) share.

    places:    how many the epoch's order has
    same_order: what else the order depends on; a saved position is refused where any of it differs
    """

    def __init__(
        self, places: int, num_replicas: int, rank: int, seed: int, same_order: dict[str, Any]
    ) -> None:
        if num_replicas < 1 or not 0 <= rank < num_replicas:
            raise ValueError(f"rank is 0 to num_replicas - 1; got rank {rank} of {num_replicas}")
        self.places, self.num_replicas, self.rank, self.seed = places, num_replicas, rank, seed
        self._same_order = {"seed": seed, **same_order}
        self.epoch = 0
        self.consumed = 0  # places that all replicas together have used

    def set_epoch(self, epoch: int) -> None:
        """Another epoch has another order, and starts at its beginning. Call it before each epoch."""
        if epoch != self.epoch:
            self.consumed = 0
        self.epoch = epoch

    def advance(self, places: int = 1) -> None:
        """Every replica has used `places` more, or what was left of them."""
        self.consumed = min(self.consumed + places * self.num_replicas, self.places)

    def finish(self) -> None:
        """The epoch is over, also for what was left out of it."""
        self.consumed = self.places

    def restart(self) -> None:
        """The same epoch again, from its beginning."""
        self.consumed = 0

    def state_dict(self) -> dict[str, Any]:
        """The position: equal on all replicas that are in the same step."""
        return {"epoch": self.epoch, "consumed": self.consumed, **self._same_order}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there. ValueError where the state belongs to other data or another order."""
        for name, mine in self._same_order.items():
            if state.get(name) != mine:
                raise ValueError(
                    f"the saved position has {name} {state.get(name)}, this {type(self).__name__} has {mine}: "
                    "in another order the same number means other samples"
                )
        self.epoch, self.consumed = state["epoch"], state["consumed"]
