"""Gradients of which each rank of an axis brings a part: added up in every backward, or once for several of them.

A norm that each rank applies to its own tokens has the gradient of those tokens (torch's Partial()). A hook on the
parameter adds the ranks' parts up as soon as backward has one: whatever comes after it, a bucket, a shard, an owner,
gets the sum. That is a message for each parameter and backward, and backward waits for each.

A sum over this axis and a mean over another one may change places. So where a step has several backwards, it may wait:

    with summed_once(model.parameters()):
        for x, y in micro_batches:
            loss(model(x), y).backward()

the hooks let their parts pass, and what has come of them by the end (shards, owners' or averaged ones) is added up in
buckets. m micro-batches and n parameters send 1 / m of the bytes, in one message where there were m n.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtcourse.parameters.averaging import sum_together
from dtcourse.parameters.cuts import Group
from dtcourse.parameters.naming import kept_of
from dtcourse.parameters.placement import local
from dtcourse.torch_private import hooks_on_gradient, own_parameters


class SumOverRanks:
    """A hook on gradients.

    waits: leaves the sum to `summed_once`
    made:  how many of them there have been in this process
    """

    made = 0

    def __init__(self, group: Group) -> None:
        self.group, self.waits = group, False
        SumOverRanks.made += 1

    def __deepcopy__(self, memo: dict[int, Any]) -> SumOverRanks:
        """One for a copy of the model, over the same group."""
        memo[id(self)] = made = SumOverRanks(self.group)
        return made

    def __call__(self, gradient: Tensor) -> Tensor:
        if self.waits:
            return gradient
        total = gradient.clone()
        # All ranks hold the sum. Where it is differentiated again, its gradient is each part's.
        with torch.no_grad():
            dist.all_reduce(total, group=self.group)
        return total


def sum_gradients(parameters: Iterable[Tensor], group: Group, of: nn.Module | None = None) -> None:
    """Of parameters that every rank uses for its own tokens: from now on backward adds up their gradients.

    One that two modules share is added up once, whoever asks second. One that is frozen now may be trained later.

    of: the model that has them; gradients of a deep copy of it, or of a module of it, are added up as well, and so are
        those of a parameter that is made anew in the place of one of these (to_empty, a conversion, PyTorch's
        fully_shard): from the module's next forward on
    """
    new, hooks = SumOverRanks(group), dict[int, SumOverRanks]()
    for parameter in parameters:
        if id(parameter) not in hooks and _may_be_trained(parameter):
            known = [hook for hook in sums_of(parameter) if hook.group is group]
            if not known:
                _put_on(parameter, new)
            hooks[id(parameter)] = known[0] if known else new
    for module in of.modules() if of is not None else ():
        for name, own in own_parameters(module).items():
            if own is not None and id(own) in hooks:
                kept = vars(module).get("sums_kept")
                if kept is None:
                    kept = vars(module)["sums_kept"] = _Kept()
                    module.register_forward_pre_hook(put_sums_back)
                kept.hooks[name, group] = weakref.ref(own), hooks[id(own)]


def put_sums_back(module: nn.Module, args: Any = ()) -> None:
    """A module's parameters that were made anew get the hooks of those that they replace."""
    kept: _Kept = vars(module).get("sums_kept") or _Kept()
    for (name, group), (ref, hook) in list(kept.hooks.items()):
        held = own_parameters(module).get(name)
        if held is None or held is ref():
            continue
        if _may_be_trained(held) and all(known.group is not group for known in sums_of(held)):
            # A hook that waits knows already whose parts it will sum.
            hook = SumOverRanks(group) if hook.waits else hook
            _put_on(held, hook)
            SumOverRanks.made += 1  # PartialGradients looks again
        kept.hooks[name, group] = weakref.ref(held), hook


def _may_be_trained(parameter: Tensor) -> bool:
    """Not codes, nor what inference_mode has made: they have no gradients, and take no hooks."""
    whole = not (parameter.is_floating_point() or parameter.is_complex())
    return not (whole or parameter.is_inference())


def _put_on(parameter: Tensor, hook: SumOverRanks) -> None:
    """PyTorch takes a hook for what is trained alone, and keeps it while that is frozen."""
    trained = parameter.requires_grad
    parameter.requires_grad_(True).register_hook(hook)
    parameter.requires_grad_(trained)


class _Kept:
    """A module's parameters with such hooks, which PyTorch's copy of a parameter has not.

    hooks: by a parameter's name and the group, the parameter and its hook
    """

    def __init__(self) -> None:
        self.hooks: dict[tuple[str, Group], tuple[weakref.ref[Tensor], SumOverRanks]] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> _Kept:
        """That of the module's copy, whose parameters get hooks of their own."""
        made = _Kept()
        for (name, group), (ref, hook) in self.hooks.items():
            parameter, copied_hook = ref(), copy.deepcopy(hook, memo)
            made.hooks[name, group] = ref, copied_hook
            if parameter is None:  # replaced
                continue
            twin = copy.deepcopy(parameter, memo)
            if copied_hook not in sums_of(twin):  # of a tied one, by another module
                _put_on(twin, copied_hook)
            made.hooks[name, group] = weakref.ref(twin), copied_hook
        return made

    def __reduce__(self) -> Any:
        """Pickled without them: their groups are this process's."""
        return _Kept, ()


def hooks_of(parameter: Tensor) -> tuple[Any, ...]:
    """What is to be called with the gradient of the whole: of one that is sharded already, what was so before."""
    hooks: tuple[Any, ...] | None = getattr(parameter, "hooks_on_whole", None)
    return tuple(hooks_on_gradient(parameter)) if hooks is None else hooks


class PartialGradients:
    """The parameters of a model whose gradients are parts: looked for once, for a step that is taken many times.

    They are looked for again after more hooks have been made, and where the model holds another parameter in the place
    of one of these: it was parallelized, or sharded, later. A hook that comes into the model otherwise waits for
    nobody, and adds up in each backward.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._made = -1
        self._places: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter]] = []
        self._found: dict[SumOverRanks, list[Any]] = {}

    def found(self) -> dict[SumOverRanks, list[Any]]:
        """By hook. What is kept of each parameter, where the model holds it gathered just now."""
        if self._made != SumOverRanks.made or not self._in_place():
            self._places = [
                (own, name, parameter)
                for module in self._model.modules()
                for own in (own_parameters(module),)
                for name, parameter in own.items()
                if parameter is not None and sums_of(kept_of(parameter))
            ]
            self._found = parts_among(parameter for *_, parameter in self._places)
            self._made = SumOverRanks.made
        return self._found

    def _in_place(self) -> bool:
        return all(own.get(name) is parameter for own, name, parameter in self._places)


def sums_of(parameter: Any) -> list[SumOverRanks]:
    """Its hooks that add up."""
    return [hook for hook in hooks_of(parameter) if isinstance(hook, SumOverRanks)]


def parts_among(parameters: Iterable[Any]) -> dict[SumOverRanks, list[Any]]:
    """Those whose gradients are parts, by the hook that adds these up."""
    found: dict[SumOverRanks, list[Any]] = {}
    for parameter in dict.fromkeys(kept_of(p) for p in parameters):
        for hook in sums_of(parameter):
            found.setdefault(hook, []).append(parameter)
    return found


@contextmanager
def summed_once(parameters: Iterable[Any] | PartialGradients) -> Iterator[None]:
    """Of the backwards inside, parts are added up at the end: to what was in .grad before, which is summed already.

    All ranks of the groups take part, with the same parameters. What raises inside leaves parts, and sends nothing.
    """
    if isinstance(parameters, PartialGradients):
        of_all = parameters.found()
    else:
        of_all = parts_among(parameters)
    found = {hook: held for hook, held in of_all.items() if not hook.waits}
    earlier = [(p, p.grad.clone()) for held in found.values() for p in held if p.grad is not None]
    for parameter, _ in earlier:
        parameter.grad = None
    for hook in found:
        hook.waits = True
    try:
        yield
        for hook, held in found.items():
            parts = [local(p.grad) for p in held if p.grad is not None]
            sum_together([part for part in parts if part.numel()], [hook.group])
    finally:
        for hook in found:
            hook.waits = False
        with torch.no_grad():
            for parameter, gradient in earlier:
                if parameter.grad is None:
                    parameter.grad = gradient
                else:
                    local(parameter.grad).add_(local(gradient))
