"""A unit's gradients between backward and reduce-scatter: cut as the ranks keep them, and which of them came.

A gradient of zero is not none: weight decay and momentum act on the one, and leave a parameter alone that no rank's
loss depends on. Ranks must agree on which it is, and can without a message: the sign of zero says it. Where a rank has
no gradient it sends -0, and -0 is the sum only where all sent -0, since (-0) + 0 = 0 and x - x = 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn

from dtcourse.sharding.sharded_parameter import Place
from dtcourse.torch_private import as_plain_tensors, gradient_hooks, is_fake


class UnsentGradients:
    """What `GatheredParameters` does with gradients. How they are cut is the layout's."""

    places: list[Place]
    sharded: Sequence[nn.Parameter]  # what the optimizer updates
    views: list[nn.Parameter]  # into the whole: what backward gives gradients
    first_elements: torch.Tensor  # of each trained parameter in each rank's part of the gradients
    trained_shard_numel: int
    num_ranks: int
    shard: torch.Tensor
    dtype: torch.dtype
    reduce_dtype: torch.dtype
    device: torch.device

    def __init__(self) -> None:
        self.gradients: torch.Tensor | None = None  # of all parameters, not yet sent
        self.arrived: set[int] = set()  # the places that have a gradient in there

    # --- a layout says ----------------------------------------------------------------------------------------

    def local_range(self, index: int) -> tuple[int, int]:
        """What this rank keeps of a parameter: (from, to) within its part."""
        raise NotImplementedError

    def matching_views(
        self, index: int, all_shards: torch.Tensor, tensor: torch.Tensor
    ) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
        """What lies where: pairs of the same elements, in all ranks' parts and in the parameter's own shape.

        all_shards: all ranks' parts, one after the other;  tensor: shaped like the parameter. The pairs are views.
        """
        raise NotImplementedError

    def in_all_shards(self, index: int, all_shards: torch.Tensor) -> torch.Tensor:
        """A parameter's elements in all ranks' parts."""
        raise NotImplementedError

    def clear_padding(self, gradients: torch.Tensor) -> None:
        """Writes -0 where there is no parameter."""
        raise NotImplementedError

    def make_gradient(self, index: int, run: torch.Tensor) -> torch.Tensor:
        """What the sharded parameter's .grad becomes, of this rank's `run` of it."""
        raise NotImplementedError

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """This rank's elements of a sharded parameter or its gradient, a plain tensor of the same memory."""
        raise NotImplementedError

    # --- from the views to the shards -------------------------------------------------------------------------

    def pack_gradients(self, scale: float) -> None:
        """Moves the views' gradients, times `scale`, to where they are sent from; each is freed as it is moved.

        All at once when the last one is there, since until then the memory for them would only be taken up.
        """
        for index, (view, place) in enumerate(zip(self.views, self.places, strict=True)):
            with as_plain_tensors():  # the view may have been freed by now
                gradient, view.grad = view.grad, None
            if gradient is None:
                continue
            if gradient.is_sparse:
                raise ValueError(
                    f"the gradient of {place.name} is sparse; a shard is dense: use sparse=False"
                )
            if self.gradients is None:
                self.gradients = self._empty_gradients()
            for target, source in self.matching_views(index, self.gradients, gradient):
                if index in self.arrived:  # another micro-batch, not sent before
                    target.add_(source.to(target.dtype), alpha=scale)
                elif source.dtype == target.dtype:
                    # Divide before the sum, not after: half-precision sums over many ranks would overflow.
                    torch.mul(source, scale, out=target)
                else:
                    target.copy_(source).mul_(scale)
            self.arrived.add(index)

    def _empty_gradients(self) -> torch.Tensor:
        size = self.num_ranks * self.trained_shard_numel
        return torch.empty(size, dtype=self.reduce_dtype, device=self.device)

    def take_gradients(self) -> tuple[torch.Tensor, set[int]]:
        """The gradients, -0 where none came, and the places that had one; the next backward starts anew."""
        gradients = self.gradients
        if gradients is None:
            gradients = self._empty_gradients()
        self.clear_padding(gradients)
        # A gradient that came may be -0 too; one element in each rank's part that is not says that it came.
        gradients[self.first_elements] += 0.0
        for index, place in enumerate(self.places):
            if place.trains and index not in self.arrived:
                self.in_all_shards(index, gradients).fill_(-0.0)
        arrived = self.arrived
        self.gradients, self.arrived = None, set()
        return gradients, arrived

    def add_to_gradients(self, shard: torch.Tensor, arrived: set[int]) -> None:
        """Adds this rank's part of the mean gradients, shape (trained_shard_numel,), to the sharded parameters' .grad.

        A parameter that no rank's loss depends on keeps the gradient it had, None at first, as in one process.
        """
        shard = shard.to(device=self.shard.device, dtype=self.dtype)
        came: list[nn.Parameter] = []
        with as_plain_tensors(), torch.no_grad():
            for index, (place, parameter) in enumerate(zip(self.places, self.sharded, strict=True)):
                if not place.trains:
                    continue
                a, b = self.local_range(index)
                mine = shard[a:b]
                if index not in arrived and _none_came(mine):
                    continue
                gradient = self.make_gradient(index, mine)
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    self.local(parameter.grad).add_(self.local(gradient))
                came.append(parameter)
        for parameter in came:  # autograd calls these hooks for its own leaves alone
            for hook in gradient_hooks(parameter):
                hook(parameter)


def _none_came(mine: torch.Tensor) -> bool:
    """Whether no rank had a gradient, by the mean's sign. Of what has no values: another rank is taken to have had."""
    return not is_fake(type(mine)) and bool(((mine == 0) & mine.signbit()).all())
