"""How torch.distributed.checkpoint lays out nests in a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.distributed.checkpoint._nested_dict import unflatten_state_dict


def nests_again(values: Mapping[str, Any], paths: Any) -> dict[str, Any]:
    """The dicts and lists of which a checkpoint has the values by flat keys.

    values: by key;  paths: by key, the keys and numbers that led to it (the `planner_data` of a checkpoint's index)
    """
    return unflatten_state_dict(dict(values), paths)
