"""A model's layers as stages: which of them a rank holds, how values pass from one to the next, which weights are tied.

Whoever cuts the model sees all of it, and so which parameters two stages share: a rank sees its own stages alone, and
trains its own copy. So each stage that `split` makes says what is tied in the whole model, and what its layers are
called there. `Held`, all stages of a rank, says that the rest of the model is on other ranks: with it states, gradients
and norms are the whole model's (dtcourse/parameters).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from dtcourse.collectives import p2p
from dtcourse.parameters.cuts import EXPERT, OTHER, TENSOR, Owners, Run
from dtcourse.parameters.naming import Entry, joined, kept_of
from dtcourse.parameters.owners import ModelOwners
from dtcourse.parameters.placement import Placement, gradient_placement_of, local, placement_of
from dtcourse.parameters.slices import require_whole
from dtcourse.parameters.whole import gathered
from dtcourse.parameters.wrapper import unwrapped
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.auxiliary import first_stage
from dtcourse.plural import plural
from dtcourse.torch_private import gradient_hooks, own_modules


class Tied(NamedTuple):
    """A parameter that several stages use: by stage, its name there, and its name in the whole model.

    trained: its copies' gradients are added up. Those of a frozen one stay what they are, but are one parameter still
    """

    names: Mapping[int, str]
    in_whole: Mapping[int, str]
    trained: bool = True


class Stage(nn.Sequential):
    """Layers one after the other. What a layer returns is the next one's argument; of a tuple each is one of its own.

    A layer whose forward takes one argument gets a tuple as it is, as in nn.Sequential. One with `passes_on` set takes
    several and returns one: the others (positions) are the next layer's too.

    tied:  of the whole model
    names: the layers' in the whole model; "" for one whose parts have their names from the model itself. Default: their
           places here
    first_loss: the first stage of the whole model that makes a loss of its own (auxiliary.py)
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        tied: Sequence[Tied] = (),
        names: Sequence[str] | None = None,
        first_loss: int | None = None,
    ) -> None:
        super().__init__(*layers)
        self.tied, self.first_loss = list(tied), first_loss
        self.names_in_whole = {str(i): name for i, name in enumerate(names or ())}

    def forward(self, *values: Any) -> Any:  # type: ignore[override]
        """The last layer's output."""
        value: Any = values if len(values) > 1 else values[0]
        for layer in self:
            several = isinstance(value, tuple) and not _takes_one(layer)
            made = layer(*value) if several else layer(value)
            value = (made, *value[1:]) if several and getattr(layer, "passes_on", False) else made
        return value


def split(
    layers: Sequence[nn.Module] | nn.Sequential | nn.ModuleList,
    ranges: Sequence[range],
    schedule: Schedule,
    rank: int,
) -> list[Stage]:
    """This rank's stages of a model that is a sequence of layers: for each stage the layers of its range, by balance().

    Raises ValueError if the model is no sequence of layers, or the ranges are not one per stage and each layer once, in
    order; and for layers that are fully sharded already.
    """
    if not isinstance(layers, (Sequence, nn.Sequential, nn.ModuleList)):
        raise ValueError(
            "A model is split as a sequence of layers, each with the output of the one before as its input; got "
            f"{type(layers).__name__}. layers_of(model) makes such a list of most models; else write the stages as "
            "modules of your own."
        )
    if len(ranges) != schedule.num_stages:
        raise ValueError(
            f"{schedule!r} has {plural(schedule.num_stages, 'stage')}; got {plural(len(ranges), 'range')} of layers."
        )
    if [i for one in ranges for i in one] != list(range(len(layers))) or not all(map(len, ranges)):
        raise ValueError(
            "The ranges of the stages take each of the "
            f"{plural(len(layers), 'layer')} once, in order, and none is empty; got {', '.join(map(str, ranges))}."
        )
    named = [(n, p) for layer in layers for n, p in layer.named_parameters()]
    why = "the module that gathers them is cut into stages, or stays behind"
    require_whole(named, "split", why, "First split, then shard.", besides=(TENSOR, EXPERT, OTHER))
    tied = tied_parameters(layers, ranges)
    names, first_loss = names_of(layers), first_stage(layers, ranges)
    return [
        Stage((layers[i] for i in ranges[s]), tied, [names[i] for i in ranges[s]], first_loss)
        for s in schedule.stages_of(rank)
    ]


def names_of(layers: Sequence[nn.Module] | nn.Sequential | nn.ModuleList) -> list[str]:
    """What the layers are called in the whole model: what layers_of says, or what their container does."""
    if isinstance(layers, nn.Module):
        return list(own_modules(layers))
    return [getattr(layer, "name_in_whole", str(i)) for i, layer in enumerate(layers)]


def tied_parameters(
    layers: Sequence[nn.Module] | nn.Sequential | nn.ModuleList, ranges: Sequence[range]
) -> list[Tied]:
    """The parameters that more than one stage uses, in the model's order; names as in `split`'s stages."""
    found: dict[nn.Parameter, tuple[dict[int, str], dict[int, str]]] = {}
    prefixes = names_of(layers)
    for stage, chosen in enumerate(ranges):
        for place, i in enumerate(chosen):
            for name, parameter in layers[i].named_parameters():
                here, in_whole = found.setdefault(parameter, ({}, {}))
                here.setdefault(stage, f"{place}.{name}")
                in_whole.setdefault(stage, joined(prefixes[i], name))
    return [Tied(*names, p.requires_grad) for p, names in found.items() if len(names[0]) > 1]


def tied_in(stages: Mapping[int, nn.Module]) -> list[Tied]:
    """What a rank's stages say of ties in the whole model; nothing where `split` has not made them."""
    inner = map(unwrapped, stages.values())
    return next((list(one.tied) for one in inner if isinstance(one, Stage)), [])


def copies_in(
    stages: Mapping[int, nn.Module], schedule: Schedule, rank: int
) -> list[tuple[nn.Parameter, list[int]]]:
    """The parameters of a rank's stages of which other ranks hold copies, and all of these ranks, in the model's order.

    stages: the rank's, by number
    """
    found = []
    for names in (one.names for one in tied_in(stages)):
        ranks = sorted({schedule.rank_of[stage] for stage in names})
        if rank in ranks and len(ranks) > 1:
            stage = next(stage for stage in names if stage in stages)
            held = unwrapped(stages[stage]).get_parameter(names[stage])
            found.append((kept_of(held), ranks))
    return found


class Held(nn.ModuleList):
    """All stages of a rank, in the model's order, as the part of the whole model that this rank has.

    later: gives the parameters of which an earlier rank of the group holds a copy
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        group: dist.ProcessGroup | None,
        later: Callable[[], Collection[nn.Parameter]],
    ) -> None:
        super().__init__(stages.values())
        # Stages of the caller's own are the layers of a model that is a sequence of them.
        self.names_in_whole = {
            str(i): "" if hasattr(unwrapped(stage), "names_in_whole") else str(number)
            for i, (number, stage) in enumerate(stages.items())
        }
        self.owners = ModelOwners(group, later, [[*t.in_whole.values()] for t in tied_in(stages)])


def sum_over_copies(
    copies: Sequence[tuple[nn.Parameter, list[int]]], group: dist.ProcessGroup | None
) -> None:
    """Gives each parameter the sum of its copies' gradients, the same bits on all ranks.

    The first rank gets the others' and sends the sum back: with two copies each sends the gradient once, as in an
    all-reduce, and no group has to be formed for them. A copy that is not used has no gradient, and counts 0.
    """
    rank = p2p.rank(group)
    for parameter, (first, *others) in copies:
        total = _alike_in_all_stages(parameter)
        if rank != first:
            p2p.send(total, first, group)
            p2p.recv(total, first, group)
        else:
            for other in others:
                one = torch.empty_like(total)
                p2p.recv(one, other, group)
                total += one
            for other in others:
                p2p.send(total, other, group)
        _keep_of(parameter, total)


def lies_in_a_flat(parameter: nn.Parameter) -> bool:
    """Whether this rank keeps of it a run of a flat tensor, which another stage's flat cuts elsewhere."""
    return any(isinstance(cut, Run) for cut in placement_of(parameter).cuts)


def gradient_owner(parameter: nn.Parameter) -> Owners | None:
    """Which of its replicas has its gradient, where backward leaves it on one (ZeRO-2): in each stage another one.

    Where reduce_gradients has done so in an earlier step, this step's are whole until it is called again.
    """
    wrappers = [hook.of() for hook in gradient_hooks(parameter) if hasattr(hook, "of")]
    if not any(hasattr(wrapper, "owners") for wrapper in wrappers):
        return None
    last = gradient_placement_of(parameter).cuts[-1:]
    return last[0] if last and isinstance(last[0], Owners) else None


def _alike_in_all_stages(parameter: nn.Parameter) -> torch.Tensor:
    """What a copy's gradient is added up by: this rank's piece, or all of it where another stage's pieces differ."""
    owner, placed = gradient_owner(parameter), placement_of(parameter)
    if parameter.grad is None and (owner is None or owner.counts):
        parameter.grad = torch.zeros_like(parameter)
    grad = None if parameter.grad is None else local(parameter.grad)
    if owner is None and not lies_in_a_flat(parameter):
        assert grad is not None, "made above"
        return grad.contiguous()
    if owner is not None:  # of the slice, where tensor parallelism has cut all copies alike
        placed = Placement(parameter.shape, (owner,))
    ((_, whole),) = gathered([Entry(["a tied parameter"], parameter, placed)], lambda _: grad)
    assert whole is not None, "each rank, or the owner, has its piece"
    return whole.contiguous()


def _keep_of(parameter: nn.Parameter, total: torch.Tensor) -> None:
    """This rank's piece of the sum, where its gradient is."""
    if parameter.grad is None:  # another rank has it
        return
    in_flat = gradient_owner(parameter) is None and lies_in_a_flat(parameter)
    local(parameter.grad).copy_(placement_of(parameter).cut(total) if in_flat else total)


def _takes_one(layer: nn.Module) -> bool:
    """Whether a layer's forward takes one argument, and no more."""
    parameters = inspect.signature(layer.forward).parameters.values()
    kinds = [one.kind for one in parameters]
    return inspect.Parameter.VAR_POSITIONAL not in kinds and len(kinds) == 1
