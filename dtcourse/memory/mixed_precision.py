"""Mixed precision with master weights: the model in 16 bits, the optimizer's own copy of it in float32.

    model = model.to(torch.bfloat16)
    optimizer = MasterWeights(model.parameters(), torch.optim.AdamW, lr=1e-3)
    loss(model(x), y).backward()
    optimizer.step()                  # gradients to float32, step there, parameters rounded back

bfloat16 keeps 8 significant bits: a weight of 1.0 has no neighbour nearer than 1/256, so an update of 0.001 rounds to
nothing, every time. Added to a float32 copy, updates sum up until the rounded parameter moves.
Source: Micikevicius et al., Mixed Precision Training (arXiv 1710.03740), section 3.1.

Bytes per parameter with Adam: 2 parameter + 2 gradient + 4 master + 8 moments = 16, as many as float32 alone takes
(ZeRO paper, 1910.02054, section 3.1); what halves are the activations, and the time of matrix products. During a step
each gradient is held in float32 in place of 16 bits: 2 bytes more. No messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer

from dtcourse.torch_private import version_of

LOW_PRECISION = (torch.float16, torch.bfloat16)


class MasterWeights(Optimizer):
    """An optimizer over float32 copies of 16-bit parameters. Schedulers, loss scalers and clipping see the copies.

    Where a step may be skipped, gradients are forgotten by this optimizer's zero_grad: the model's knows no masters.

    params:          as any optimizer's: parameters, named parameters, or groups. float32 parameters (say, of norms)
                     are their own master; frozen ones are left alone.
    optimizer_class: any torch optimizer;  kwargs: its arguments

        scaler.scale(loss).backward()          # float16 needs a loss scaler too, bfloat16 does not
        optimizer.copy_grads_to_masters()      # so that unscaling and clipping work in float32
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(optimizer.master_parameters(), 1.0)
        scaler.step(optimizer)
    """

    def __init__(self, params: Any, optimizer_class: type[Optimizer], **kwargs: Any) -> None:
        self._masters: dict[torch.Tensor, torch.Tensor] = {}  # parameter -> master
        self._versions: dict[torch.Tensor, int] = {}
        self._inner: Any = None  # the optimizer over the masters
        super().__init__(params, {})  # checks the parameters and sorts them into groups
        self._inner = optimizer_class([self._over_masters(g) for g in self.param_groups], **kwargs)
        # From here on "the" groups and state are the inner optimizer's: a scheduler that sets lr sets it there.
        self.param_groups, self.state = self._inner.param_groups, self._inner.state
        self.defaults = self._inner.defaults

    # --- the three movements of a step ------------------------------------------------------------------------

    def copy_grads_to_masters(self) -> None:
        """Moves each 16-bit gradient to its master, in float32, and frees the 16-bit one. `step` does it otherwise.

        Called after every micro-batch, it sums the gradients in float32.
        """
        for parameter, master in self._masters.items():
            if parameter.grad is None:
                continue
            if master is parameter:
                if parameter.dtype in LOW_PRECISION:
                    raise ValueError(
                        f"a {parameter.dtype} parameter of shape {list(parameter.shape)} was frozen when the optimizer "
                        "was built, so it has no master: build the optimizer after unfreezing"
                    )
                continue
            if parameter.grad.is_sparse:
                raise ValueError("sparse gradients cannot be moved: keep this parameter in float32")
            if master.grad is None:
                master.grad = parameter.grad.to(master.dtype)
            else:
                master.grad.add_(parameter.grad)
            parameter.grad = None

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Steps the masters, and rounds them into the model.

        RuntimeError where there is no gradient at all, or where the model's parameters were changed by others since
        the masters were copied from them (load_state_dict, a broadcast): see `refresh`.
        """
        self._check_nobody_wrote()
        evaluate = None if closure is None else lambda: self._evaluate(closure)
        self.copy_grads_to_masters()
        if closure is None and all(p.grad is None for p in self.master_parameters()):
            raise RuntimeError(
                "no parameter has a gradient: step comes after backward. If the model was converted "
                "after the optimizer was built, build the optimizer again, over the new parameters."
            )
        loss = self._inner.step(evaluate)
        self.round_into_model()
        for parameter, master in self._masters.items():
            if master is not parameter:
                master.grad = None  # used up: model.zero_grad() would not know of it
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients of both, parameters and masters."""
        for parameter, master in self._masters.items():
            for tensor in (parameter, master):
                if set_to_none:
                    tensor.grad = None
                elif tensor.grad is not None:
                    tensor.grad.zero_()

    # --- the masters ------------------------------------------------------------------------------------------

    def master_parameters(self) -> Iterable[torch.Tensor]:
        """The float32 parameters that the optimizer steps, for clipping. Gradients are on them once copied."""
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def refresh(self) -> None:
        """Copies the model's parameters into the masters: after the model was loaded or changed by other hands."""
        for parameter, master in self._masters.items():
            if master is not parameter:
                master.copy_(parameter)
        self._note_versions()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Trains these parameters as well (unfrozen layers)."""
        if self._inner is None:  # the base class, sorting the first ones
            super().add_param_group(param_group)
        else:
            group = dict(param_group)
            params = group["params"]
            group["params"] = [params] if isinstance(params, torch.Tensor) else list(params)
            self._inner.add_param_group(self._over_masters(group))

    def _over_masters(self, group: dict[str, Any]) -> dict[str, Any]:
        masters = []
        for parameter in group["params"]:
            if parameter not in self._masters:
                low = parameter.dtype in LOW_PRECISION and parameter.requires_grad
                self._masters[parameter] = (
                    parameter.detach().float().requires_grad_() if low else parameter
                )
                self._versions[parameter] = version_of(parameter)
            masters.append(self._masters[parameter])
        return {**group, "params": masters}

    @torch.no_grad()
    def round_into_model(self) -> None:
        """Rounds each master to its parameter's 16 bits. `step` ends with it."""
        for parameter, master in self._masters.items():
            if master is not parameter:
                parameter.copy_(master)
        self._note_versions()

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        """For optimizers that ask for the loss themselves (LBFGS): at the masters' values."""
        self.round_into_model()
        with torch.enable_grad():
            loss = closure()
        self.copy_grads_to_masters()
        return loss

    def _note_versions(self) -> None:
        self._versions = {p: version_of(p) for p in self._masters}

    def _check_nobody_wrote(self) -> None:
        changed = sum(
            version_of(p) != self._versions[p] for p, m in self._masters.items() if m is not p
        )
        if changed:
            raise RuntimeError(
                f"{changed} of {len(self._masters)} parameters were changed after the masters were copied from them "
                "(load_state_dict? a broadcast?), and this step would undo that: call refresh() after such a change, "
                "or build the optimizer after it"
            )

    # --- state ------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's, and "masters": a list of float32 tensors a group (None: is its own master)."""
        own = set(self._masters) & set(self._masters.values())
        masters = [
            [None if p in own else p.detach().clone() for p in group["params"]]
            for group in self.param_groups
        ]
        return {**self._inner.state_dict(), "masters": masters}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there, masters, moments and model. ValueError, and nothing is changed, where it does not fit."""
        saved = self._checked(state_dict)
        self._inner.load_state_dict({k: v for k, v in state_dict.items() if k != "masters"})
        # Loading puts new groups in the inner optimizer; ours stay the same objects.
        self.param_groups, self.state = self._inner.param_groups, self._inner.state
        with torch.no_grad():
            for group, values in zip(self.param_groups, saved, strict=True):
                for master, value in zip(group["params"], values, strict=True):
                    if value is not None:
                        master.copy_(value)
        self.round_into_model()

    def _checked(self, state_dict: dict[str, Any]) -> list[list[torch.Tensor | None]]:
        missing = [key for key in ("state", "param_groups", "masters") if key not in state_dict]
        if missing:
            raise ValueError(
                f"the state dict lacks {', '.join(missing)}: was it saved by a plain optimizer, or is it damaged?"
            )
        mine = [[_shape(p, self._masters) for p in g["params"]] for g in self.param_groups]
        masters = state_dict["masters"]
        theirs = [[None if m is None else tuple(m.shape) for m in group] for group in masters]
        if mine != theirs:
            raise ValueError(
                f"the state dict has masters {theirs}, and this optimizer {mine}: of another model?"
            )
        for values in masters:
            for value in values:
                if value is not None and value.dtype != torch.float32:
                    raise ValueError(
                        f"a master is {value.dtype} in the state dict, and should be float32"
                    )
                if value is not None and not value.isfinite().all():
                    raise ValueError(
                        "a master in the state dict is not finite: damaged, or saved after an overflow"
                    )
        return masters


def _shape(
    master: torch.Tensor, masters: dict[torch.Tensor, torch.Tensor]
) -> tuple[int, ...] | None:
    return None if masters.get(master) is master else tuple(master.shape)
