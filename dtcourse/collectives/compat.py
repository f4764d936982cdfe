"""torch.distributed's newest names on every version that dtcourse accepts.

torch 2.13 calls them all_gather_single and reduce_scatter_single, and warns of the older names, which older versions
have. The arguments are the same: one tensor of p parts in rank order, and one part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

_OLDER = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}


def find(module: Any, name: str) -> Callable[..., Any] | None:
    """The collective `name` of a module that has torch.distributed's names, new or old; None where it has neither."""
    return getattr(module, name, None) or getattr(module, _OLDER.get(name, name), None)


# Every torch has one of the two names.
all_gather_single: Any = find(dist, "all_gather_single")
reduce_scatter_single: Any = find(dist, "reduce_scatter_single")
