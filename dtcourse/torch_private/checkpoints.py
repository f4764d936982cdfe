"""How torch.distributed.checkpoint lays out nests in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def nests_again(values: Mapping[str, Any], paths: Any) -> dict[str, Any]:
    """The dicts and lists of which a checkpoint has the values by flat keys.

    values: by key;  paths: by key, the keys and numbers that led to it (the `planner_data` of a checkpoint's index)
    """
    # Not above: it takes longer than PyTorch's own import does, and every rank has this module.
    from torch.distributed.checkpoint._nested_dict import unflatten_state_dict

    return unflatten_state_dict(dict(values), paths)
