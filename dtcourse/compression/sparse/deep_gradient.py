"""Deep gradient compression (Lin et al. 1712.01887): one number in a thousand travels,
and momentum SGD is still momentum SGD.

    model = DistributedDataParallel(model)                             # ours or PyTorch's
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)            # without momentum: it is in the state
    state = DeepGradientState(optimizer, momentum=0.9, clip_norm=1.0)
    model.register_comm_hook(state, deep_gradient_hook)
    state.set_epoch(epoch)                                             # at each epoch's start

Each rank keeps a velocity u and what it has not yet sent, v, of its own gradients g:

    momentum correction     u = m u + g;  v = v + u      the velocity is what adds up, not the gradient: a number that
                            is sent after 100 steps has the momentum of those steps in it
    selection               the largest k of v in each layer travel, and are 0 afterwards
    factor masking          u is 0 there too: else momentum goes on pushing where the step is over
    local clipping          g is clipped before it adds up, to the part that one of p ranks has in a gradient of norm
                            clip_norm
    sparsity warm-up        75%, 93.75%, 98.4375%, 99.6% in the first epochs, then 99.9%

Where everything is sent (ratio = 1) this is SGD with momentum under DDP, if factor_masking is False; with it u is 0
after each step, and it is SGD without momentum. The same happens in part at the start of the warm-up, where a quarter
is sent.

Bytes sent by each of p ranks, for a bucket of layers with n_l numbers: (p - 1) 8 sum of ceil(ratio n_l), all-gathered
(12 in place of 8 for double). Memory per rank: 2 n numbers, u and v, of which u takes the place of SGD's momentum
buffer.

clip_norm needs the norm of all gradients, so nothing travels before backward has made the last one; without it each
bucket travels when it is full. A gradient that is not finite is seen on all ranks, and none takes anything of that step
into u and v: it is to be skipped. Until the last bucket has come u and v are there twice. A GradScaler's scale is in g,
so in u and v: call reset() when it changes.
"""

# No `from __future__ import annotations` here: PyTorch's DDP looks at the hook's annotations, which have to be types.

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dtcourse.compression.compressor import is_finite
from dtcourse.compression.sparse.deep_gradient_rules import (
    WARM_UP_EPOCHS,
    hand_on,
    local_clip,
    refuse_momentum,
    warm_up_ratio,
)
from dtcourse.compression.sparse.selection import largest
from dtcourse.compression.sparse.top_k import checked_ratio, kept
from dtcourse.compression.wire.background import group_beside, in_background
from dtcourse.compression.wire.exchange import all_gather
from dtcourse.compression.wire.of_model import ModelParameters, WholeStep, check_whose, whose
from dtcourse.parameters.hook_states import note_called
from dtcourse.parameters.replicas import Group


class DeepGradientState:
    """What deep_gradient_hook keeps: one for each model.

    optimizer:       takes the step; it must have no momentum of its own
    ratio:           the part of each layer that is sent after the warm-up
    momentum, nesterov: as SGD's
    clip_norm:       the norm to which the whole gradient would be clipped; None: no clipping
    warm_up_epochs:  epochs with more than ratio, see set_epoch
    group:           the ranks to average over, the model's

    velocity, left: u and v, flat, by parameter
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, *, ratio: float = 0.001, momentum: float = 0.9,
        nesterov: bool = False, clip_norm: float | None = None, factor_masking: bool = True,
        warm_up_epochs: int = WARM_UP_EPOCHS, group: Group = None,
    ) -> None:  # fmt: skip
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is 0 or more and below 1; got {momentum!r}")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm is above 0, or None for no clipping; got {clip_norm!r}")
        refuse_momentum(optimizer)
        self.optimizer, self.group = optimizer, group
        self.momentum, self.nesterov = momentum, nesterov
        self.clip_norm, self.factor_masking = clip_norm, factor_masking
        self.final_ratio, self.warm_up_epochs = checked_ratio(ratio), warm_up_epochs
        self.set_epoch(0)
        self.velocity: dict[Tensor, Tensor] = {}
        self.left: dict[Tensor, Tensor] = {}
        self._model, self._step = ModelParameters(), WholeStep()
        self._held: list[tuple[Any, torch.futures.Future[Tensor]]] = []

    def set_epoch(self, epoch: int) -> None:
        """Sets `ratio`, the part that is sent: the same epoch on every rank."""
        self.epoch = epoch
        self.ratio = warm_up_ratio(epoch, self.final_ratio, self.warm_up_epochs)

    def reset(self) -> None:
        """Forgets velocities and what has not been sent: after a jump in the weights, or another loss scale."""
        self.velocity.clear()
        self.left.clear()

    def state_dict(self) -> dict[str, Any]:
        """This rank's u and v, in the order of the optimizer's parameters. Each rank has its own."""
        of = self._parameters()

        def copied(kept: dict[Tensor, Tensor]) -> list[Tensor | None]:
            return [kept[p].clone() if p in kept else None for p in of]

        kept = {"velocity": copied(self.velocity), "left": copied(self.left)}
        return {**whose(self.group), "epoch": self.epoch, **kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what this rank's state_dict() was. Raises ValueError for one of another rank or model."""
        check_whose(state, self.group)
        of = self._parameters()
        sizes = [None if u is None else u.numel() for u in state["velocity"]]
        if len(sizes) != len(of) or any(
            n not in (None, p.numel()) for n, p in zip(sizes, of, strict=True)
        ):
            raise ValueError(
                f"the saved state is of {len(sizes)} parameters of {sizes} numbers, and the optimizer has {len(of)} of "
                f"{[p.numel() for p in of]}: it belongs to another model"
            )
        self.reset()
        self.set_epoch(state["epoch"])
        for p, u, v in zip(of, state["velocity"], state["left"], strict=True):
            if u is not None:
                self.velocity[p] = u.to(p.device, copy=True)
                self.left[p] = v.to(p.device, copy=True)

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    # --- a bucket ------------------------------------------------------------------------------------------------

    def send(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Starts with a full bucket; where all gradients have to be known first, the last bucket starts with all."""
        if bucket.index() == 0:
            refuse_momentum(self.optimizer)
            self._held.clear()  # of a backward that failed half-way
            self._step = WholeStep()
        self._model.check(bucket)
        if self.clip_norm is None:
            return self._started(bucket, 1.0)
        promise: torch.futures.Future[Tensor] = torch.futures.Future()
        self._held.append((bucket, promise))
        if bucket.is_last():
            norms = [
                torch.linalg.vector_norm(b.buffer(), dtype=torch.float64) for b, _ in self._held
            ]
            scale = local_clip(torch.stack(norms), self.clip_norm, dist.get_world_size(self.group))
            for held, future in self._held:
                hand_on(self._started(held, scale), future)
            self._held.clear()
        return promise

    def _started(self, bucket: Any, scale: float) -> torch.futures.Future[Tensor]:
        return in_background(self.take_out(bucket, scale), bucket.buffer(), self.group)

    def take_out(self, bucket: Any, scale: float) -> Callable[[], Tensor]:
        """Adds a bucket's gradients, (n,), to u and v, and takes out what travels; the function sends it."""
        buffer, step, is_last = bucket.buffer(), self._step, bucket.is_last()
        dtype = torch.promote_types(buffer.dtype, torch.float32)
        group, values, places, start = group_beside(self.group), [], [], 0
        velocity, left = {}, {}
        for parameter in bucket.parameters():
            n = parameter.numel()
            g = buffer[start : start + n].to(dtype) * scale
            sent, where, velocity[parameter], left[parameter] = self.select(parameter, g)
            values.append(sent)
            places.append(where + start)
            start += n
        message = torch.cat(
            [torch.cat(values).view(torch.uint8), torch.cat(places).int().view(torch.uint8)]
        )

        def keep() -> None:
            self.velocity.update(velocity)
            self.left.update(left)

        def finish() -> Tensor:
            total = torch.zeros(start, dtype=dtype, device=buffer.device)
            everyone = all_gather(message, group)
            for each in everyone:
                count = len(each) // (dtype.itemsize + 4)
                theirs, at = each.split([count * dtype.itemsize, count * 4])
                total.index_add_(0, at.clone().view(torch.int32), theirs.clone().view(dtype))
            step.bucket_done(is_finite(total), is_last, keep)
            return total / len(everyone)

        return finish

    def select(self, parameter: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The numbers of one layer that travel, (k,), their places, and u and v after that.

        g: its gradient, (n,), clipped
        """
        k = kept(len(g), self.ratio)
        u, v = (of.get(parameter, torch.zeros_like(g)) for of in (self.velocity, self.left))
        if not is_finite(g):
            return torch.full_like(g[:k], torch.nan), torch.arange(k, device=g.device), u, v
        if self.nesterov:
            u = (u + g).mul_(self.momentum)
            v = (v + u).add_(g)
        else:
            u = (u * self.momentum).add_(g)
            v = v + u
        where = largest(v, k)
        sent = v[where]
        v[where] = 0
        if self.factor_masking:
            u[where] = 0
        return sent, where, u, v


def deep_gradient_hook(
    state: DeepGradientState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """register_comm_hook's hook: the sum of what the ranks have sent, over their number.

    Raises ValueError for another state.
    """
    if not isinstance(state, DeepGradientState):
        raise ValueError(
            "deep_gradient_hook is registered with its own state: register_comm_hook(DeepGradientState(optimizer), "
            f"deep_gradient_hook); got {type(state).__name__}"
        )
    note_called(state)
    return state.send(bucket)
