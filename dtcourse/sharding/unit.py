"""A unit: the parameters of one module that are gathered, freed and reduced together.

    SHARDED  --unshard-->  UNSHARDING  --wait_for_unshard-->  UNSHARDED  --reshard-->  SHARDED

Both transfers are asynchronous. unshard gives the whole its memory and starts an all-gather; whoever needs the
parameters calls wait_for_unshard, which waits for what is still missing. start_reduce starts the reduce-scatter of the
gradients; its finish() waits, and adds this rank's shard of the mean to the parameters' .grad. With hybrid sharding the
part is then all-reduced among the ranks that hold the same one, which is asynchronous as well.

When to call what is schedule.py's business. Bytes: a gather and a reduce-scatter each send
(p - 1) parts of n / p elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from dtcourse import device, events
from dtcourse.sharding.changed import has_changed, lay_out_again
from dtcourse.sharding.gathered_parameters import GatheredParameters, Named
from dtcourse.sharding.policies import MixedPrecisionPolicy, ShardGroups, is_offload
from dtcourse.sharding.reduction import Reduction
from dtcourse.sharding.same_units import SameUnits
from dtcourse.torch_private import all_gather_single, in_backward

SHARDED, UNSHARDING, UNSHARDED = "sharded", "unsharding", "unsharded"


class Unit:
    """Parameters of `module` that no inner unit has; there may be none, where the module only holds units.

    named: those parameters, tied ones once, each with all its holders
    layout: how they are cut;  on_meta: they get memory and values later
    """

    def __init__(
        self,
        module: nn.Module,
        named: Sequence[Named],
        layout: type[GatheredParameters],
        shard_groups: ShardGroups,
        reshard_after_forward: bool | None,
        mp_policy: MixedPrecisionPolicy,
        offload_policy: Any,
        on_meta: bool = False,
    ) -> None:
        self.module, self.shard_groups, self.mp_policy = module, shard_groups, mp_policy
        self.name = type(module).__name__  # until the root is known: schedule.py
        self.reshard_after_forward = reshard_after_forward
        self.reduces_gradients = True  # whether the next backward sends its gradients
        self.reshard_after_backward = True
        self.device = device.current()
        self.offloaded = is_offload(offload_policy)
        self.pinned = self.offloaded and offload_policy.pin_memory and device.is_gpu(self.device)
        self._layout = layout
        self._on_gradient: Callable[[torch.Tensor], None] | None = None
        self._times_laid_out = 0
        self._same_units = SameUnits()
        self.param_groups: list[GatheredParameters] = []
        groups = self.grouped(named)
        originals = {name: parameter for name, parameter, _ in named}
        for group in groups:
            if on_meta:
                shard = torch.empty(group.shard_numel, dtype=group.dtype, device="meta")
            else:
                whole = [originals[place.name] for place in group.places]
                shard = self._from_rank_0(group, whole)
            group.set_shard(shard)
        self.take(groups)

        self.state = SHARDED
        self.gathered_in_backward = False
        self.unsharded_by_user = (
            False  # gathered by unshard(): only the user, or a forward, frees it
        )
        self._all_gathers: list[tuple[GatheredParameters, Any, torch.Tensor, torch.Tensor]] = []
        # which versions of the shards are, or were last, the whole
        self.gathered_versions: list[int] = []

    # --- its parameters, as they are cut ----------------------------------------------------------------------

    def grouped(self, named: Sequence[Named]) -> list[GatheredParameters]:
        """New groups for parameters: those of a kind are gathered together. Nothing is in them yet."""
        by_kind: dict[Any, list[Named]] = {}
        for item in named:
            by_kind.setdefault(self._layout.kind(item[1]), []).append(item)
        dtypes = self.mp_policy.param_dtype, self.mp_policy.reduce_dtype
        return [
            self._layout(alike, self.shard_groups, *dtypes, self.device)
            for alike in by_kind.values()
        ]

    def take(self, groups: list[GatheredParameters]) -> None:
        """Has these groups from now on, each with this rank's part of it, which is what the module holds."""
        self.param_groups = groups
        self._times_laid_out += 1
        self.num_trained = sum(group.num_trained for group in groups)
        self.has_frozen = any(not place.trains for group in groups for place in group.places)
        for group in groups:
            group.use_sharded_views()
            if self._on_gradient is not None:
                group.on_gradient(self._on_gradient)

    def on_gradient(self, method: Callable[[torch.Tensor], None]) -> None:
        """Has method(view) run whenever backward has a parameter's gradient, however it is laid out."""
        self._on_gradient = method
        for group in self.param_groups:
            group.on_gradient(method)

    def has_changed(self) -> bool:
        """Whether parameters were converted, frozen or unfrozen since they were laid out."""
        return has_changed(self)

    def _from_rank_0(
        self, group: GatheredParameters, parameters: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """This rank's part of the first rank's parameters: every rank starts as that one did."""
        shard = torch.empty(group.shard_numel, dtype=group.dtype, device=self.device)
        shards = None
        if dist.get_rank(self.shard_groups.shard) == 0:
            shards = list(group.cut_into_shards(parameters).split(group.shard_numel))
        dist.scatter(shard, shards, group=self.shard_groups.shard, group_src=0)
        if self.shard_groups.replicate is not None:
            dist.broadcast(shard, group=self.shard_groups.replicate, group_src=0)
        if self.offloaded:
            host = torch.empty(shard.shape, dtype=shard.dtype, pin_memory=self.pinned)
            return host.copy_(shard)
        return shard

    def set_name(self, name: str) -> None:
        """The name of the unit in its model, for events and errors."""
        self.name = name or self.name
        for group in self.param_groups:
            group.set_name(self.name)

    @property
    def keeps_unsharded(self) -> bool:
        """Whether it is gathered from forward to backward."""
        return self.reshard_after_forward is False

    @property
    def is_current(self) -> bool:
        """Whether the gathered parameters are what the shards are now: no optimizer has stepped since."""
        versions = [group.version() for group in self.param_groups]
        return self.gathered_versions == [self._times_laid_out, *versions]

    @property
    def unsharded_bytes(self) -> int:
        """Bytes of the gathered parameters, padding included where they keep it."""
        return sum(
            group.unsharded_numel * group.compute_dtype.itemsize for group in self.param_groups
        )

    # --- parameters -------------------------------------------------------------------------------------------

    def unshard(self) -> None:
        """Starts to bring the parameters together; does nothing where they are, or are on their way."""
        if self.state != SHARDED:
            return
        for group in self.param_groups:
            group.check(self.name)
        if has_changed(self):
            lay_out_again(self)
        if self.param_groups:
            when = "backward" if in_backward() else "forward"
            self._same_units.check(f"gather in {when}", self.name, self.shard_groups.shard)
        self.state, self.gathered_in_backward = UNSHARDING, in_backward()
        versions = [group.version() for group in self.param_groups]
        self.gathered_versions = [self._times_laid_out, *versions]
        if self.param_groups:
            events.instant(f"gather {self.name}", "memory", bytes=self.unsharded_bytes)
        with torch.no_grad():
            for group in self.param_groups:
                # A copy where storage and computation differ in dtype or device; the shard itself where not.
                shard = group.shard.to(self.device, group.compute_dtype, non_blocking=self.pinned)
                output = group.all_gather_output()
                work = all_gather_single(
                    output, shard, group=self.shard_groups.shard, async_op=True
                )
                self._all_gathers.append((group, work, shard, output))

    def wait_for_unshard(self) -> None:
        """Waits until the parameters are whole, and puts them into the module."""
        self.unshard()
        if self._all_gathers:
            with events.span(f"wait for {self.name}", "wait"):
                for _, work, *_ in self._all_gathers:
                    work.wait()
            # On a GPU only the stream has waited.
            self._same_units.check_late(all_came=self.device.type == "cpu")
        with torch.no_grad():
            for group, _, _, output in self._all_gathers:
                group.copy_out(output)
        self._all_gathers.clear()
        for group in self.param_groups:
            group.use_unsharded_views()
        self.state = UNSHARDED

    def use_sharded_views(self) -> None:
        """Puts the shards back into the module while the whole stays in memory, for backward.

        Between forward and backward, model.parameters() are then what an optimizer and zero_grad() are meant to see.
        """
        for group in self.param_groups:
            group.use_sharded_views()

    def reshard(self) -> None:
        """Puts the shards back into the module, and gives the memory of the whole back."""
        self.unsharded_by_user = False
        if self.state == SHARDED:
            return
        self.wait_for_unshard()  # what is under way must have landed before its memory goes
        for group in self.param_groups:
            group.use_sharded_views()
            group.free_unsharded()
        self.state = SHARDED
        if self.param_groups:
            events.instant(f"free {self.name}", "memory", bytes=self.unsharded_bytes)

    # --- gradients --------------------------------------------------------------------------------------------

    def pack_gradients(self) -> None:
        """Puts what backward has brought to where it is sent from, divided by all ranks."""
        with torch.no_grad():
            for group in self.param_groups:
                group.pack_gradients(1.0 / self.shard_groups.num_ranks)

    def start_reduce(self) -> list[Reduction]:
        """Starts to sum the gradients over the ranks. They leave this unit: the next backward finds it empty."""
        trained = [group for group in self.param_groups if group.num_trained]
        if trained:
            # Where it was gathered for this backward, the ranks of its shards have compared that.
            shard = None if self.gathered_in_backward else self.shard_groups.shard
            self._same_units.check("reduction", self.name, shard, self.shard_groups.replicate)
        return [Reduction(group, self.shard_groups, self.name) for group in trained]


def units_in(module: nn.Module) -> list[Unit]:
    """The units of a module and of all modules inside, in their order."""
    return [vars(m)["_fsdp"] for m in module.modules() if "_fsdp" in vars(m)]
