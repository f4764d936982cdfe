"""An optimizer's state in a checkpoint: by parameters' names, as torch.distributed.checkpoint.state_dict has it.

    {"state": {name: {slot: tensor or piece}}, "param_groups": [{"params": [names], option: value}]}

Names say what is whose, so another order, another number of ranks and another cut of the parameters can load it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata


def paths(metadata: Metadata, part: str) -> Iterator[tuple[str, Any, str]]:
    """(key, parameter's name, slot) of all of part "state", or (key, number, option) of "param_groups"."""
    for key, path in (metadata.planner_data or {}).items():
        if tuple(path[:2]) == ("optimizer", part) and len(path) == 4:
            yield key, path[2], path[3]


def named_groups(
    optimizer: torch.optim.Optimizer, names: Mapping[torch.Tensor, str]
) -> list[dict[str, Any]]:
    """The optimizer's parameter groups with names for parameters. ValueError for a parameter that has none."""
    strange = [p for group in optimizer.param_groups for p in group["params"] if p not in names]
    if strange:
        raise ValueError(
            f"the optimizer holds {len(strange)} parameters that the model has not, the first of shape "
            f"{list(strange[0].shape)}: pass the module that holds all of them"
        )
    return [
        {
            **{k: v for k, v in group.items() if k != "params"},
            "params": [names[p] for p in group["params"]],
        }
        for group in optimizer.param_groups
    ]


def keeps_state(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> bool:
    """Whether the optimizer keeps a parameter's state on this rank: ZeRO does so on the owner alone."""
    owners = optimizer.owners(parameter) if hasattr(optimizer, "owners") else None
    return owners is None or bool(owners.counts)


def groups_in(staged: Mapping[str, Any], metadata: Metadata) -> list[dict[str, Any]]:
    """The parameter groups among what was read."""
    groups: dict[int, dict[str, Any]] = {}
    for key, number, option in paths(metadata, "param_groups"):
        groups.setdefault(number, {})[option] = staged[key]
    return [groups[number] for number in sorted(groups)]


def check_groups(mine: list[dict[str, Any]], stored: list[dict[str, Any]]) -> None:
    """Raises ValueError unless both have the same parameters in the same groups."""
    if [sorted(g["params"]) for g in mine] != [sorted(g["params"]) for g in stored]:
        raise ValueError(
            f"the checkpoint's optimizer has parameter groups of {[len(g['params']) for g in stored]}, this one of "
            f"{[len(g['params']) for g in mine]} or of other parameters: build it as it was"
        )
