"""torch.distributed's newest names on every version that dtcourse accepts.

torch 2.13 calls them all_gather_single and reduce_scatter_single, and warns of the older names, which older versions
have. The arguments are the same: one tensor of p parts in rank order, and one part.
"""

from __future__ import annotations

import torch.distributed as dist

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
