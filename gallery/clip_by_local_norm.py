"""A sharded model trains worse than the same one under DDP, and worse with more ranks, where gradients are clipped.

Cause: torch.nn.utils.clip_grad_norm_ sees a rank's shards alone, so each rank divides by a norm of its own: smaller
than the whole, and another on each.
Found by: the gradients after the clipping against those of one process.
Repair: the wrapper's own clip_grad_norm_, which adds up the shards' squares over the ranks. Known from
FullyShardedDataParallel, whose documentation warns of it, and from every sharding written by hand. (fully_shard's
DTensors know better.)
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

RANKS = 4
KIND = "silently wrong"
TOOL = "gradients"
NAMES = ("0.weight",)
REPAIR = [
    (
        "nn.utils.clip_grad_norm_(model.parameters(), CLIP)\n    with",
        "model.clip_grad_norm_(CLIP)\n    with",
    )
]

CLIP = 0.1


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def whole_batch():
    data = torch.Generator().manual_seed(1)
    return torch.randn(32, 8, generator=data), torch.randint(3, (32,), generator=data)


def step():
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = FullyShardedDataParallel(build(), device_id=torch.device("cpu"), use_orig_params=True)
    x, y = (part.chunk(world_size)[rank] for part in whole_batch())
    nn.functional.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    with FullyShardedDataParallel.summon_full_params(model, with_grads=True):
        whole = {name: p.grad.clone() for name, p in model.module.named_parameters()}
    return {"gradients": whole}


def reference():
    model = build()
    x, y = whole_batch()
    nn.functional.cross_entropy(model(x), y).backward()
    nn.utils.clip_grad_norm_(model.parameters(), CLIP)
    return {"gradients": {name: p.grad for name, p in model.named_parameters()}}


if __name__ == "__main__":
    from dtcourse.debugging.gallery import main

    main(__file__)
