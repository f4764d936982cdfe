"""The mean gradients of what is gathered together, on their way from all ranks to each rank's part."""

from __future__ import annotations

import torch
import torch.distributed as dist

from dtcourse import events
from dtcourse.sharding.gathered_parameters import GatheredParameters
from dtcourse.sharding.policies import ShardGroups
from dtcourse.torch_private import reduce_scatter_single


class Reduction:
    """The mean gradients of what is gathered together, on their way to the ranks' shards."""

    def __init__(
        self, parameters: GatheredParameters, shard_groups: ShardGroups, name: str
    ) -> None:
        self.parameters, self.shard_groups, self.name = parameters, shard_groups, name
        gradients, self.arrived = parameters.take_gradients()
        self._gradients: torch.Tensor | None = gradients  # must live until it is sent
        self.shard = gradients.new_empty(parameters.trained_shard_numel)
        self._work = reduce_scatter_single(
            self.shard, gradients, group=shard_groups.shard, async_op=True
        )

    def release_early(self) -> None:
        """Frees the whole gradients if they have been sent by now.

        Not where an all-reduce would follow: when this rank looks is chance,
        and ranks must call collectives in one order.
        """
        if (
            self.shard_groups.replicate is None
            and self._work is not None
            and self._work.is_completed()
        ):
            self.wait_for_reduce_scatter()

    def wait_for_reduce_scatter(self) -> None:
        """Waits for the reduce-scatter and frees the whole gradients; starts the all-reduce across, if there is one."""
        if self._gradients is None:
            return
        with events.span(f"wait for gradients of {self.name}", "wait"):
            self._work.wait()
        self._gradients = None
        self._work = None
        if self.shard_groups.replicate is not None:
            self._work = dist.all_reduce(
                self.shard, group=self.shard_groups.replicate, async_op=True
            )

    def finish(self) -> None:
        """Waits for all of it, and adds the part to the shards' .grad."""
        self.wait_for_reduce_scatter()
        if self._work is not None:
            self._work.wait()
        with torch.no_grad():
            self.parameters.add_to_gradients(self.shard, self.arrived)
