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

import torch.distributed as dist
from torch import nn

from dtcourse.parameters.cuts import EXPERT, OTHER, TENSOR
from dtcourse.parameters.naming import joined
from dtcourse.parameters.owners import ModelOwners
from dtcourse.parameters.slices import require_whole
from dtcourse.parameters.wrapper import unwrapped
from dtcourse.pipeline_parallel.actions import Schedule
from dtcourse.pipeline_parallel.auxiliary import first_stage
from dtcourse.plural import plural
from dtcourse.torch_private import own_modules


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


class Held(nn.ModuleList):
    """All stages of a rank, in the model's order, as the part of the whole model that this rank has.

    later:  gives the parameters of which an earlier rank of the group holds a copy
    spread: gives those the gradients of that rank's copies. A collective
    """

    def __init__(
        self,
        stages: Mapping[int, nn.Module],
        group: dist.ProcessGroup | None,
        later: Callable[[], Collection[nn.Parameter]],
        spread: Callable[[], None],
    ) -> None:
        super().__init__(stages.values())
        # Stages of the caller's own are the layers of a model that is a sequence of them.
        self.names_in_whole = {
            str(i): "" if hasattr(unwrapped(stage), "names_in_whole") else str(number)
            for i, (number, stage) in enumerate(stages.items())
        }
        tied = [[*one.in_whole.values()] for one in tied_in(stages)]
        self.owners = ModelOwners(group, later, tied, spread)


def _takes_one(layer: nn.Module) -> bool:
    """Whether a layer's forward takes one argument, and no more."""
    parameters = inspect.signature(layer.forward).parameters.values()
    kinds = [one.kind for one in parameters]
    return inspect.Parameter.VAR_POSITIONAL not in kinds and len(kinds) == 1
