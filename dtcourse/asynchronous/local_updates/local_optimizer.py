"""What all methods of local updates share: an optimizer round an optimizer, and ranks that know when they meet.

    optimizer = LocalSGD(model, torch.optim.SGD(model.parameters(), lr=0.1), period=8)

The model stays as it is and the inner optimizer makes each rank's own steps; the method is what happens besides. The
wrapper is a torch.optim.Optimizer, so schedulers of the learning rate, gradient scalers and zero_grad work on it. A
GradScaler that finds inf on one rank leaves out the inner step of that rank alone; the step counts, and ranks meet when
they would have met. What can go wrong silently is asked here: workers with different settings never meet, or meet with
models of different age; a parameter that was replaced since the wrapper was made is trained by nobody.

A rank's parameters, and its optimizer's state, are its own between meetings: each rank saves its own state dicts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from dtcourse.parameters.agreement import all_equal, check_agreed
from dtcourse.parameters.backward import check_same_parameters
from dtcourse.parameters.replicas import Group, broadcast_model
from dtcourse.torch_private import let_scaler_step, said_by_scaler

EXTRA = "local_updates"  # the wrapper's own part of its state dict


class LocalOptimizer(Optimizer):
    """Runs `optimizer` on this rank's own gradients; a method says when ranks meet, and what they do then.

    model:     what is trained, the same on every rank but for its values, which become rank 0's
    optimizer: any of torch.optim over parameters of the model
    settings:  what all ranks must have alike, by name
    group:     the ranks that meet; default: all
    init_sync: False: the ranks have the same values already, and no model is compared or sent

    steps: so far, with those that a GradScaler has left out; steps_since_meeting: of them since the ranks last met

    Raises ValueError if the ranks have different models or settings, or the optimizer's parameters are not the model's.
    """

    takes_ddp = False  # whether it has a use for DistributedDataParallel over the same ranks

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        settings: dict[str, Any],
        group: Group = None,
        init_sync: bool = True,
    ) -> None:
        self.model, self.group = model, group
        self.names = _names(model, optimizer)
        self.parameters = list(self.names)
        self.size = dist.get_world_size(group)
        if self.size < 1:
            raise ValueError("this rank is not in the group, so it meets nobody")
        if self.in_ddp and not self.takes_ddp and self.size > 1:
            raise ValueError(
                "the model is in DistributedDataParallel, which averages the gradients of the same ranks in each step, "
                "so no step would be local: pass the module itself, or DistributedDataParallel over each node's ranks"
            )
        check_agreed(
            {"method": type(self).__name__, **settings},
            group,
            "Workers that differ in this never meet: pass the same on every rank",
        )
        if init_sync:
            broadcast_model(model, group=group)
        super().__init__(optimizer.param_groups, dict(optimizer.defaults))
        self.optimizer = optimizer
        self._share()
        self.steps = self.steps_since_meeting = 0
        self._trained = [p for p in model.parameters() if p.requires_grad]
        self._layout = self._layout_now()
        let_scaler_step(self)

    def _share(self) -> None:
        """One state and one list of groups, seen through both optimizers."""
        self.state, self.param_groups = self.optimizer.state, self.optimizer.param_groups

    @property
    def device(self) -> torch.device:
        """Where the parameters, and so the messages, are."""
        return self.parameters[0].device

    @property
    def in_ddp(self) -> bool:
        """Whether the model is in a DistributedDataParallel, ours or PyTorch's, over the ranks that meet here."""
        if not hasattr(self.model, "require_backward_grad_sync"):
            return False
        ddp_group: Any = getattr(self.model, "process_group", None)
        return set(dist.get_process_group_ranks(ddp_group)) == set(
            dist.get_process_group_ranks(self.group)
        )

    # --- what may go wrong ----------------------------------------------------------------------------------

    def check_unchanged(self) -> None:
        """Raises ValueError if the model or the optimizer has other parameters than when they were wrapped."""
        check_same_parameters(self.model, set(self._trained))
        now = {p for group in self.optimizer.param_groups for p in group["params"]}
        gone = [name for p, name in self.names.items() if p not in now]
        new = [p for p in now if p.requires_grad and p not in self.names]
        if gone or new:
            raise ValueError(
                f"the optimizer has other parameters than when it was wrapped: {len(new)} new, without "
                f"{', '.join(gone) or 'none of the old ones'}. What is new would stay this rank's own: wrap it again"
            )
        names = self.names.values()
        for name, before, after in zip(names, self._layout, self._layout_now(), strict=True):
            if before != after:
                raise ValueError(
                    f"{name} was {before} when the optimizer was wrapped, and is {after}: change the model first, then "
                    "wrap its optimizer"
                )

    def check_meeting(self, **besides: Any) -> None:
        """Raises ValueError on every rank unless all come after as many steps, and with the same `besides`.

        One all-reduce of 16 bytes for each of them: ranks that count differently would average models of different age.
        """
        mine = {"number of steps since the last meeting": self.steps_since_meeting, **besides}
        numbers = [v if isinstance(v, int) else crc32(repr(v).encode()) for v in mine.values()]
        if not all_equal(numbers, self.group, self.device):
            check_agreed(
                mine,
                self.group,
                "The ranks meet with models that do not belong together: call step() as often, with the same period, "
                "on every rank",
            )

    def saved_buffers(self) -> list[torch.Tensor]:
        """Floating-point buffers that the state dict has, as running statistics: what a method may average."""
        saved = {id(t) for t in self.model.state_dict(keep_vars=True).values()}
        return [b for b in self.model.buffers() if id(b) in saved and b.is_floating_point()]

    def _layout_now(self) -> list[str]:
        return [
            f"{list(p.shape)} of {str(p.dtype).removeprefix('torch.')} on {p.device}"
            for p in self.parameters
        ]

    # --- an optimizer like others ---------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        raise NotImplementedError

    def inner_step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step of the inner optimizer; none where a GradScaler has found a gradient of this rank not finite."""
        if self.unscale():
            return None
        return self.optimizer.step(closure)

    @property
    def under_scaler(self) -> bool:
        """Whether a GradScaler has called this step."""
        return said_by_scaler(self)[0] is not None

    @torch.no_grad()
    def unscale(self) -> bool:
        """Divides the gradients where a GradScaler has left it to this optimizer. Whether one was not finite."""
        found_inf, scale = said_by_scaler(self)
        if scale is not None:
            # as PyTorch's scaler divides, to the last bit
            by = scale.double().reciprocal().float()
            for parameter in (p for group in self.param_groups for p in group["params"]):
                if parameter.grad is not None:
                    parameter.grad.mul_(by.to(parameter.grad.device))
            self.grad_scale = None
        return bool(found_inf)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """The inner optimizer's."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """ValueError: what one rank adds, the others would not average."""
        if hasattr(self, "optimizer"):
            raise ValueError(
                "parameters cannot be added to a wrapped optimizer: add them to the inner one, then wrap it again"
            )
        super().add_param_group(param_group)

    def own_state(self) -> dict[str, Any]:
        """What the method keeps besides the inner optimizer's state."""
        return {"steps": self.steps, "steps_since_meeting": self.steps_since_meeting}

    def load_own_state(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self.steps, self.steps_since_meeting = state["steps"], state["steps_since_meeting"]

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's state dict, and this rank's place in its round: save it on each rank, with the model's.

        Saved in the middle of a round and loaded on the same ranks, training goes on bit for bit. Wrap first, then
        load: wrapping gives the model rank 0's values.
        """
        return {**self.optimizer.state_dict(), EXTRA: self.own_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes a wrapper's state dict, or a plain optimizer's: then a round begins."""
        plain = {name: value for name, value in state_dict.items() if name != EXTRA}
        self.optimizer.load_state_dict(plain)
        self._share()
        if EXTRA in state_dict:
            self.load_own_state(state_dict[EXTRA])


def check_period(period: int, what: str = "period") -> None:
    """Raises ValueError for what is no number of steps from one meeting to the next."""
    if isinstance(period, bool) or not isinstance(period, int) or period < 1:
        raise ValueError(
            f"{what} is the number of steps from one meeting to the next, 1 or more (1: in each step); got {period!r}"
        )


def _names(model: nn.Module, optimizer: Optimizer) -> dict[Any, str]:
    """{parameter that the optimizer trains: its name in the model}, in the model's order, tied ones once."""
    if isinstance(optimizer, LocalOptimizer):
        raise ValueError(
            f"the optimizer is a {type(optimizer).__name__} already: pass the inner one"
        )
    if not isinstance(optimizer, Optimizer):
        raise ValueError(f"pass an optimizer, as torch.optim has them; got {optimizer!r}")
    given = [p for group in optimizer.param_groups for p in group["params"]]
    known, optimized = set(model.parameters()), set(given)
    for number, parameter in enumerate(given):
        if parameter not in known:
            raise ValueError(
                f"parameter {number} of the optimizer, of shape {list(parameter.shape)}, is not the model's: build the "
                "optimizer on model.parameters()"
            )
    names = {p: n for n, p in model.named_parameters() if p.requires_grad and p in optimized}
    if not names:
        raise ValueError("the optimizer trains no parameter: all of them are frozen")
    return names
