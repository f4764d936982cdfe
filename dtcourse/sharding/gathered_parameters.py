"""Parameters of a unit that are gathered together: this rank's part of them, and all of them while they are whole.

    shard       what this rank keeps, shape (shard_numel,): goes into the all-gather as it lies
    unsharded   the parameters end to end, shape (unsharded_numel,): the model's parameters are views into it
    gradients   of all parameters, cut as the ranks keep them, shape (num_ranks *
                trained_shard_numel,): goes into the reduce-scatter

While the whole is not there, its storage is empty, and the model holds what this rank keeps in each parameter's place.
How they are cut is a layout: flat_parameter.py cuts all of them as one run, dtensor_parameters.py each by its rows.
What becomes of the gradients until they are sent: unsent_gradients.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.parameters import cuts, placement
from dtcourse.parameters.backward import on_gradient
from dtcourse.parameters.kept_placements import put_back
from dtcourse.parameters.partial_gradients import put_sums_back
from dtcourse.sharding.policies import ShardGroups
from dtcourse.sharding.sharded_parameter import FreedParameter, Place, become
from dtcourse.sharding.unsent_gradients import UnsentGradients
from dtcourse.torch_private import (
    address_of,
    as_plain_tensors,
    own_parameters,
    version_of,
)

Named = tuple[str, nn.Parameter, tuple[tuple[nn.Module, str], ...]]
"""A parameter with its name and the modules and attributes that hold it: several where it is tied."""


class GatheredParameters(UnsentGradients):
    """Parameters of one dtype, in one all-gather and one reduce-scatter.

    named:   the parameters with the names and holders that their places get
    shard_groups: the ranks that share them out
    compute_dtype: what the whole is gathered and computed in
    device:  where the whole is
    """

    shard_numel: int  # that this rank keeps, padding included
    trained_shard_numel: int  # of those, the ones that have gradients
    unsharded_numel: int  # of all parameters, padding included where the layout keeps it

    def __init__(
        self,
        named: Sequence[Named],
        shard_groups: ShardGroups,
        compute_dtype: torch.dtype | None,
        reduce_dtype: torch.dtype | None,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.num_ranks = dist.get_world_size(shard_groups.shard)
        self.rank = dist.get_rank(shard_groups.shard)
        self.shard_groups, self.group = shard_groups, shard_groups.shard
        self.dtype, self.device = named[0][1].dtype, device
        floating = self.dtype.is_floating_point
        self.compute_dtype = (compute_dtype if floating else None) or self.dtype
        self.reduce_dtype = reduce_dtype or self.compute_dtype
        for _, parameter, holders in named:
            for module, attribute in holders:  # it may have been made anew since it was cut
                put_back(module, attribute, parameter)
                put_sums_back(module)
        self.lay_out(named)
        self.num_trained = sum(place.trains for place in self.places)

        self.unsharded = torch.empty(self.unsharded_numel, dtype=self.compute_dtype, device=device)
        # The views are of another alias (.data), so that writing the whole again, with the same values, does not count
        # as a change of what autograd saved in forward.
        same_memory = self.unsharded.data
        self.views = [
            nn.Parameter(same_memory[p.start : p.end].view(p.shape), requires_grad=p.trains)
            for p in self.places
        ]
        for view, at in zip(self.views, self.places, strict=True):
            view.place = at  # type: ignore[attr-defined]
            for hook in at.hooks if at.trains else ():
                view.register_hook(hook)
        self.free_unsharded()

    # --- a layout says ----------------------------------------------------------------------------------------

    @staticmethod
    def kind(parameter: nn.Parameter) -> Any:
        """What parameters must have in common to be gathered together."""
        raise NotImplementedError

    def lay_out(self, named: Sequence[Named]) -> None:
        """Sets `places`, the sizes and `first_elements`."""
        raise NotImplementedError

    def cut(self, at: Place) -> cuts.Cut:
        """How a parameter is cut here."""
        raise NotImplementedError

    def make_parameter(self, index: int, run: torch.Tensor) -> nn.Parameter:
        """What the model holds of a parameter, of this rank's `run` of it."""
        raise NotImplementedError

    def all_gather_output(self) -> torch.Tensor:
        """Memory for all ranks' parts, one after the other, to be gathered into."""
        raise NotImplementedError

    def copy_out(self, gathered: torch.Tensor) -> None:
        """All ranks' parts are there: makes them the whole."""
        raise NotImplementedError

    def placed_before(self, place: Place) -> placement.Placement:
        """Where a parameter's pieces are before it is cut here: of copies of the shards every rank has the same."""
        assert place.inside is not None, "every layout says it"
        replicate = self.shard_groups.replicate
        copies = [cuts.Replicated(replicate, cuts.FULL)] if replicate is not None else []
        return place.inside.and_then(*copies)

    # --- this rank's shard -----------------------------------------------------------------------------------

    def cut_into_shards(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Whole parameters, cut into all ranks' parts, and padded."""
        all_shards = torch.zeros(
            self.num_ranks * self.shard_numel, dtype=self.dtype, device=self.device
        )
        for index, parameter in enumerate(parameters):
            for target, source in self.matching_views(index, all_shards, parameter.detach()):
                target.copy_(source)
        return all_shards

    def set_shard(self, shard: torch.Tensor) -> None:
        """Makes `shard`, shape (shard_numel,), this rank's part, and new sharded parameters of it."""
        ranges = [self.local_range(index) for index in range(len(self.places))]
        self.keep(shard, [self.make_parameter(i, shard[a:b]) for i, (a, b) in enumerate(ranges)])

    def keep(self, shard: torch.Tensor, parameters: Sequence[nn.Parameter]) -> None:
        """This rank's part, and the sharded parameters that lie in it."""
        self.shard, self.sharded = shard, parameters
        self.mark()
        with torch.no_grad():
            self.addresses = [address_of(self.local(p)) for p in parameters]

    def mark(self) -> None:
        """Notes on each sharded parameter where its pieces are; on each view, what is kept of it."""
        for at, view, parameter in zip(self.places, self.views, self.sharded, strict=True):
            placement.place(parameter, self.placed_before(at), self.cut(at))
            parameter.hooks_on_whole = at.hooks  # type: ignore[attr-defined]
            view.kept, view.placed = parameter, parameter.placed  # type: ignore[attr-defined]

    def adopt(self, shard: torch.Tensor, parameters: Sequence[nn.Parameter]) -> None:
        """Makes `shard` this rank's part, of what sharded parameters hold now; they stay, and lie in it from now on."""
        raise NotImplementedError

    def has_changed(self) -> bool:
        """Whether sharded parameters are no longer the pieces of the shard. False: that is refused, by check."""
        return False

    def is_of_another_kind(self) -> bool:
        """Whether they differ from it in more than where they lie: on all ranks alike."""
        return False

    def version(self) -> int:
        """How often this rank's part has been changed in place."""
        return version_of(self.shard)

    def check(self, unit: str) -> None:
        """Raises ValueError if a module holds another parameter in its place, or one that may not change has."""
        for place, *known in zip(self.places, self.sharded, self.views, strict=True):
            held = [own_parameters(module).get(name) for module, name in place.holders]
            if not all(any(h is parameter for parameter in known) for h in held):
                raise ValueError(
                    f"{place.name} of {unit} was replaced or removed after it was sharded (a new Parameter, pruning, a "
                    "parametrization?): change the model first, shard it then. To set values, load a state."
                )
        self.check_unchanged(unit)

    def check_unchanged(self, unit: str) -> None:
        """Raises ValueError if a parameter is no longer the piece of the shard that it was made as."""
        with as_plain_tensors(), torch.no_grad():
            for place, parameter, address in zip(
                self.places, self.sharded, self.addresses, strict=True
            ):
                local = self.local(parameter)
                if (
                    address_of(local) != address
                    or local.dtype != self.dtype
                    or local.device != self.shard.device
                ):
                    raise ValueError(
                        f"{place.name} of {unit} was moved or converted after it was sharded (it is "
                        f"{local.dtype} on {local.device}; the shard is {self.dtype} on {self.shard.device}). "
                        "Move and convert the model first, shard it then; for another dtype in computation use "
                        "mp_policy."
                    )
                if parameter.requires_grad != place.trains:
                    raise ValueError(
                        f"requires_grad of {place.name} of {unit} changed after it was sharded from {place.trains} "
                        f"to {parameter.requires_grad}: freeze and unfreeze before sharding, "
                        "since the two are laid apart."
                    )

    # --- the whole --------------------------------------------------------------------------------------------

    def allocate_unsharded(self) -> torch.Tensor:
        """Gives the whole its memory, and returns it to be written."""
        self.unsharded.untyped_storage().resize_(
            self.unsharded_numel * self.unsharded.element_size()
        )
        return self.unsharded

    def free_unsharded(self) -> None:
        """Takes the whole's memory away. The views stay, and autograd's references, until it is gathered again."""
        for view in self.views:
            become(view, FreedParameter)
        self.unsharded.untyped_storage().resize_(0)

    def use_unsharded_views(self) -> None:
        """The model's parameters become the views into the whole."""
        for view, place in zip(self.views, self.places, strict=True):
            become(view, nn.Parameter)
            for module, attribute in place.holders:
                own_parameters(module)[attribute] = view

    def use_sharded_views(self) -> None:
        """The model's parameters become this rank's part. What was frozen or unfrozen while it was whole stays so."""
        for parameter, view, place in zip(self.sharded, self.views, self.places, strict=True):
            if view.requires_grad != place.trains:
                parameter.requires_grad_(view.requires_grad)
                view.requires_grad_(place.trains)
            for module, attribute in place.holders:
                own_parameters(module)[attribute] = parameter

    def set_name(self, unit: str) -> None:
        """The name of the unit, for errors."""
        for parameter in (*self.sharded, *self.views):
            parameter.unit_name = unit  # type: ignore[attr-defined]

    # --- gradients --------------------------------------------------------------------------------------------

    def on_gradient(self, method: Callable[[torch.Tensor], None]) -> None:
        """Has method(view) run whenever backward has a view's gradient, for as long as the method's object lives."""
        with as_plain_tensors():
            for view, place in zip(self.views, self.places, strict=True):
                if place.trains:
                    on_gradient(view, method)
