"""Elastic averaging (EASGD): each rank explores on its own, on a spring to a center that follows all of them.

    optimizer = ElasticAveraging(model, torch.optim.SGD(model.parameters(), lr=0.1), period=10)
    loss(model(x), y).backward()       # this rank's own gradient
    optimizer.step()

    x_r    <- x_r - lr g_r(x_r) - alpha (x_r - center)        alpha = beta / p;  the last term in every H-th step
    center <- (1 - beta) center + beta 1/p sum_r x_r

Both from the values before the step. Local SGD sets all ranks back to one point; here they keep apart, and the center,
an average over ranks and over time, is the model to use: `center_parameters`. With Nesterov's momentum it is EAMSGD.
Source: Zhang, Choromanska and LeCun (NIPS 2015, arXiv 1412.6651), equations 5 and 6, and 8 for EAMSGD. This is the
synchronous form; in the asynchronous one a server holds the center, and workers come when they like.

Bytes that all ranks together send in a step, N bytes of parameters (ring): 2 (p - 1) (N + 32) / H, with 32 bytes of
agreement; sharded as much, N padded to a multiple of p numbers.
Memory per rank: the center, N, or N / p where it is sharded; 2 N more during a meeting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from dtcourse.asynchronous.local_updates.flat import flattened
from dtcourse.asynchronous.local_updates.local_optimizer import LocalOptimizer, check_period
from dtcourse.parameters.buckets import Bucket
from dtcourse.parameters.replicas import Group
from dtcourse.torch_private import all_gather_single, reduce_scatter_single


class ElasticAveraging(LocalOptimizer):
    """Takes `optimizer`'s steps on each rank, and in every `period`-th one pulls rank and center towards each other.

    model, optimizer: as in LocalOptimizer. With torch.optim.SGD(nesterov=True) the model's parameters are the point
        ahead, x + momentum v, at which the paper takes the gradient, and x is what the center sees and is reported to
    period:       H, tau in the paper
    beta:         how far the center moves to the ranks' mean in a meeting, 0 to 1; each rank moves alpha = beta / p
        to the center. The paper takes 0.9. With 0 nobody hears of anybody
    shard_center: each rank holds 1 / p of the center; else all of it, all ranks the same

    Buffers (BatchNorm's running statistics) are each rank's own, and the center has none.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        period: int,
        beta: float = 0.9,
        *,
        shard_center: bool = False,
        group: Group = None,
        init_sync: bool = True,
    ) -> None:
        check_period(period)
        if not 0 <= beta <= 1:
            raise ValueError(
                f"beta is how far the center moves to the mean, 0 to 1 (beyond it, it overshoots); got {beta}"
            )
        self.period, self.beta, self.shard_center = period, beta, shard_center
        settings = {"period": period, "beta": beta, "shard_center": shard_center}
        super().__init__(model, optimizer, settings, group, init_sync)
        self.alpha = beta / self.size
        wholes = [bucket.buffer() for bucket in flattened(self.parameters)]
        rank = dist.get_rank(group)
        # One flat tensor, or this rank's part of it, for each bucket of parameters.
        self.center = [self._parts(x)[rank].clone() if shard_center else x for x in wholes]

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """One step of the inner optimizer, and the pull where it is time: of what both were before it."""
        pulls: list[Bucket] = []
        if self.steps_since_meeting >= self.period:
            pulls = self._meet()
        with torch.enable_grad():
            loss = self.inner_step(closure)
        for bucket in pulls:
            for parameter, pull in zip(bucket.parameters(), bucket.gradients(), strict=True):
                parameter.sub_(pull)
        self.steps += 1
        self.steps_since_meeting += 1
        return loss

    def center_parameters(self) -> dict[str, torch.Tensor]:
        """The center by the parameters' names, for load_state_dict(..., strict=False). Sharded, all ranks call it."""
        buckets = flattened(self.parameters)
        names = {}
        for bucket, center in zip(buckets, self.center, strict=True):
            for parameter, value in zip(
                bucket.parameters(), bucket.views(self._whole(center, bucket)), strict=True
            ):
                names[self.names[parameter]] = value.clone()
        return {name: names[name] for name in self.names.values()}

    # --- a meeting ------------------------------------------------------------------------------------------

    def _meet(self) -> list[Bucket]:
        """Moves the center; returns, for each parameter, how far it is to be pulled: alpha (x - center)."""
        self.check_unchanged()
        self.check_meeting(period=self.period)
        positions = self._positions()
        for bucket, center in zip(positions, self.center, strict=True):
            x = bucket.buffer()
            mean = self._mean(x)
            x.sub_(self._whole(center, bucket)).mul_(self.alpha)
            center.lerp_(mean, self.beta)
        self.steps_since_meeting = 0
        return positions

    def _positions(self) -> list[Bucket]:
        """Every parameter's x. With Nesterov's momentum the model is ahead of it by -momentum * lr * buffer."""
        buckets = flattened(self.parameters)
        views = {p: x for b in buckets for p, x in zip(b.parameters(), b.gradients(), strict=True)}
        for options in self.param_groups:
            for parameter in options["params"] if options.get("nesterov") else ():
                velocity = self.state.get(parameter, {}).get("momentum_buffer")
                if velocity is not None and parameter in views:
                    views[parameter].add_(velocity, alpha=options["lr"] * options["momentum"])
        return buckets

    def _mean(self, x: torch.Tensor) -> torch.Tensor:
        """The mean of all ranks' x; sharded, this rank's part of it."""
        if not self.shard_center:
            mean = x / self.size
            dist.all_reduce(mean, group=self.group)
            return mean
        parts = self._parts(x).div_(self.size)
        mine = torch.empty_like(parts[0])
        reduce_scatter_single(mine, parts.flatten(), group=self.group)
        return mine

    def _whole(self, center: torch.Tensor, bucket: Bucket) -> torch.Tensor:
        if not self.shard_center:
            return center
        whole = center.new_empty(self.size * len(center))
        all_gather_single(whole, center, group=self.group)
        return whole[: bucket.elements]

    def _parts(self, x: torch.Tensor) -> torch.Tensor:
        """(p, n): a copy of x in equal parts, the last ones padded with zeros."""
        parts = x.new_zeros(self.size, -(-len(x) // self.size))
        parts.view(-1)[: len(x)] = x
        return parts

    # --- state ----------------------------------------------------------------------------------------------

    def own_state(self) -> dict[str, Any]:
        """The round, and the center (this rank's part of it)."""
        return {**super().own_state(), "center": [center.clone() for center in self.center]}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Goes on from there. Raises ValueError where the center is of another model, or of other parts."""
        saved, here = [len(c) for c in state["center"]], [len(c) for c in self.center]
        if saved != here:
            raise ValueError(
                f"the saved center has {saved} numbers, this rank's has {here}: it is another model's, was sharded "
                "otherwise, or among another number of ranks"
            )
        super().load_own_state(state)
        for center, value in zip(self.center, state["center"], strict=True):
            center.copy_(value)
