"""A unit's parameters as one flat tensor, of which each rank keeps one equal part.

    weight (2, 3)      bias (2,)   padding          3 ranks: 9 elements, 3 each
    w w w w w w        b b         0
    rank 0 | rank 1 |  rank 2      |

The parameters are laid end to end and padded to a multiple of the ranks, so one all-gather brings all of them, straight
into place, and one reduce-scatter takes all their gradients. A rank's part may begin and end in the middle of a matrix:
it is even to the element, whatever the shapes. While the flat is whole, each parameter is a view into it; while it is not,
its storage is empty, and the model holds a ShardedParameter in each parameter's place: the elements that this rank keeps.
What is laid together has one dtype and one requires_grad (fully_shard makes several flats where a unit mixes them).

A gradient of zero is not none: weight decay and momentum act on the one, and leave a parameter alone that no rank's loss
depends on. Ranks must agree on which it is, and can without a message: the sign of zero says it. Where a rank has no
gradient it sends -0, and -0 is the sum only where all sent -0, since (-0) + 0 = 0 and x - x = 0.

Source: Zhao et al., PyTorch FSDP (VLDB 2023, arXiv 2304.11277), section 3.2.1; Rajbhandari et al., ZeRO (arXiv 1910.02054), P_os+g+p.
A rank holds ceil(n / p) of the n elements, and n + padding of them while the flat is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from dtcourse.sharding.sharded_parameter import (
    FreedParameter,
    Place,
    ShardedGradient,
    ShardedParameter,
)
from dtcourse.torch_private import as_plain_tensors, gradient_hooks, own_parameters


def padded_size(elements: int, ranks: int) -> int:
    """The least multiple of `ranks` that holds `elements`, and not 0: every rank has a part."""
    return -(-max(elements, 1) // ranks) * ranks


def part_of(start: int, end: int, rank: int, part: int) -> tuple[int, int]:
    """What rank `rank` keeps of the elements start..end of a flat in parts of `part`: (from, to) within its own part."""
    low, high = rank * part, (rank + 1) * part
    first, last = max(start, low), min(end, high)
    return (first - low, last - low) if first < last else (0, 0)


class FlatParameter:
    """Parameters of one dtype and one requires_grad: this rank's part, and the whole while it is gathered.

    named:   the parameters with the names and holders that their places get
    ranks, rank: of the group that shares them out
    compute_dtype: what the whole is gathered and computed in
    device:  where the whole is
    """

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter, tuple[tuple[nn.Module, str], ...]]],
        ranks: int,
        rank: int,
        compute_dtype: torch.dtype | None,
        reduce_dtype: torch.dtype | None,
        device: torch.device,
    ) -> None:
        self.places: list[Place] = []
        start = 0
        for name, parameter, holders in named:
            end = start + parameter.numel()
            self.places.append(Place(name, parameter.shape, start, end, holders))
            start = end
        first = named[0][1]
        self.elements, self.rank = start, rank
        self.padded = padded_size(start, ranks)
        self.part = self.padded // ranks
        self.dtype, self.trains = first.dtype, first.requires_grad
        floating = self.dtype.is_floating_point
        self.compute_dtype = (compute_dtype if floating else None) or self.dtype
        self.reduce_dtype = reduce_dtype or self.compute_dtype
        self.device = device

        self.whole = torch.empty(self.padded, dtype=self.compute_dtype, device=device)
        # The views are of another alias (.data), so that writing the whole again, with the same values, does not count as
        # a change of what autograd saved in forward.
        same_memory = self.whole.data
        self.views = [
            nn.Parameter(same_memory[p.start : p.end].view(p.shape), requires_grad=self.trains)
            for p in self.places
        ]
        for view, place in zip(self.views, self.places, strict=True):
            view.place = place  # type: ignore[attr-defined]
        self.first_elements = torch.tensor(
            [
                r * self.part + part_of(p.start, p.end, r, self.part)[0]
                for p in self.places
                for r in range(p.start // self.part, -(-p.end // self.part))
                if p.shape.numel()
            ],
            dtype=torch.int64,
            device=device,
        )  # of each parameter in each rank's part
        self.gradients: torch.Tensor | None = None  # whole, not yet sent
        self.arrived: set[int] = set()  # the places that have a gradient in there
        self.free()

    # --- this rank's part -----------------------------------------------------------------------------------

    def pack(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Whole parameters, laid end to end and padded: shape (padded,)."""
        flat = torch.zeros(self.padded, dtype=self.dtype, device=self.device)
        for place, parameter in zip(self.places, parameters, strict=True):
            flat[place.start : place.end].copy_(parameter.detach().reshape(-1))
        return flat

    def keep(self, shard: torch.Tensor) -> None:
        """Makes `shard`, shape (part,), this rank's part, and new ShardedParameters of it."""
        self.shard = shard
        self.sharded: list[ShardedParameter] = []
        for place in self.places:
            a, b = self.mine(place)
            parameter = ShardedParameter(shard[a:b], requires_grad=self.trains)
            parameter.place, parameter.unit_name = place, ""
            self.sharded.append(parameter)
        self._addresses = [p.data_ptr() for p in self.sharded]

    def mine(self, place: Place) -> tuple[int, int]:
        """What this rank keeps of a parameter: (from, to) within its part; empty is (0, 0)."""
        return part_of(place.start, place.end, self.rank, self.part)

    def check(self, unit: str) -> None:
        """Raises ValueError if a parameter is no longer the piece of the shard that it was made as."""
        for place, *known in zip(self.places, self.sharded, self.views, strict=True):
            held = [own_parameters(module).get(name) for module, name in place.holders]
            if not all(any(h is parameter for parameter in known) for h in held):
                raise ValueError(
                    f"{place.name} of {unit} was replaced or removed after fully_shard (a new Parameter, pruning, a "
                    "parametrization?): change the model first, shard it then. To set values, load a state."
                )
        with as_plain_tensors():
            for parameter, address in zip(self.sharded, self._addresses, strict=True):
                if (
                    parameter.data_ptr() != address
                    or parameter.dtype != self.dtype
                    or parameter.device != self.shard.device
                ):
                    raise ValueError(
                        f"{parameter.place.name} of {unit} was moved or converted after fully_shard (it is "
                        f"{parameter.dtype} on {parameter.device}; the shard is {self.dtype} on {self.shard.device}). "
                        "Move and convert the model first, shard it then; for another dtype in computation use mp_policy."
                    )
                if parameter.requires_grad != self.trains:
                    raise ValueError(
                        f"requires_grad of {parameter.place.name} of {unit} changed after fully_shard from {self.trains} "
                        f"to {parameter.requires_grad}: freeze and unfreeze before sharding, since the two are laid apart."
                    )

    # --- the whole --------------------------------------------------------------------------------------------

    def allocate(self) -> torch.Tensor:
        """Gives the whole its memory, and returns it to be written."""
        self.whole.untyped_storage().resize_(self.padded * self.whole.element_size())
        return self.whole

    def free(self) -> None:
        """Takes the whole's memory away. The views stay, and autograd's references to them, until it is gathered again."""
        for view in self.views:
            view.__class__ = FreedParameter
        self.whole.untyped_storage().resize_(0)

    def show_whole(self) -> None:
        """The model's parameters become the views into the whole."""
        for view, place in zip(self.views, self.places, strict=True):
            view.__class__ = nn.Parameter
            for module, attribute in place.holders:
                own_parameters(module)[attribute] = view

    def show_shard(self) -> None:
        """The model's parameters become this rank's part."""
        for parameter, place in zip(self.sharded, self.places, strict=True):
            for module, attribute in place.holders:
                own_parameters(module)[attribute] = parameter

    # --- gradients --------------------------------------------------------------------------------------------

    def on_gradient(self, callback: Callable[[], Any]) -> None:
        """Has callback() run whenever backward has the gradient of one of the views."""
        with as_plain_tensors():
            for view in self.views:
                view.register_post_accumulate_grad_hook(lambda _: callback())

    def pack_gradients(self, scale: float) -> None:
        """Moves the views' gradients, times `scale`, into the flat of gradients; each is freed as it is moved.

        All at once when the last one is there, since until then the flat would only take up memory.
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
                self.gradients = torch.empty(
                    self.padded, dtype=self.reduce_dtype, device=self.device
                )
            target = self.gradients[place.start : place.end].view(place.shape)
            if index in self.arrived:  # another micro-batch, not sent before
                target.add_(gradient.to(target.dtype), alpha=scale)
            elif gradient.dtype == target.dtype:
                # Divide before the sum, not after: half-precision sums over many ranks would overflow.
                torch.mul(gradient, scale, out=target)
            else:
                target.copy_(gradient).mul_(scale)
            self.arrived.add(index)

    def take_gradients(self) -> tuple[torch.Tensor, set[int]]:
        """The flat of gradients, -0 where none came, and the places that had one; the next backward starts another."""
        gradients = self.gradients
        if gradients is None:
            gradients = torch.empty(self.padded, dtype=self.reduce_dtype, device=self.device)
        gradients[self.elements :].fill_(-0.0)
        # A gradient that came may be -0 too; one element in each rank's part that is not says that it came.
        gradients[self.first_elements] += 0.0
        for index, place in enumerate(self.places):
            if index not in self.arrived:
                gradients[place.start : place.end].fill_(-0.0)
        arrived = self.arrived
        self.gradients, self.arrived = None, set()
        return gradients, arrived

    def add_gradient(self, shard: torch.Tensor, arrived: set[int]) -> None:
        """Adds this rank's part of the mean gradients, shape (part,), to the ShardedParameters' .grad.

        A parameter that no rank's loss depends on keeps the gradient it had, None at first, as in one process.
        """
        shard = shard.to(device=self.shard.device, dtype=self.dtype)
        came: list[ShardedParameter] = []
        with as_plain_tensors():
            for index, (place, parameter) in enumerate(zip(self.places, self.sharded, strict=True)):
                a, b = self.mine(place)
                mine = shard[a:b]
                if index not in arrived and bool(((mine == 0) & mine.signbit()).all()):
                    continue
                if parameter.grad is None:
                    gradient = mine.as_subclass(ShardedGradient)
                    gradient.place, gradient.unit_name = place, parameter.unit_name
                    parameter.grad = gradient
                else:
                    parameter.grad.add_(mine)
                came.append(parameter)
        for parameter in came:  # autograd calls these hooks for its own leaves alone
            for hook in gradient_hooks(parameter):
                hook(parameter)
