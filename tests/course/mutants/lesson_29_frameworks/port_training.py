"""Answers to port_training: see test_exercises.py."""

_MADE = "    optimizer = torch.optim.SGD(model.parameters(), lr=lr)\n"
_SHARD = '    mesh = init_device_mesh("cpu", (dist.get_world_size(),))\n'
_MODEL = "    fully_shard(model, mesh=mesh)\n"
_SYNC = "            model.set_requires_gradient_sync(i == len(micro_batches))\n"
_NORM = "        norms.append(norm.full_tensor().item())\n"
_CLIP = "        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)\n"
_LOCAL = (
    "        local = torch.stack([p.grad.to_local().norm() for p in model.parameters()]).norm()\n"
)
_STATE = "get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))"

# Replicas in place of shards.
_DDP = """
from contextlib import nullcontext

import torch
from torch import nn


def port_training(model, steps, lr, max_norm):
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    norms = []
    for micro_batches in steps:
        optimizer.zero_grad()
        for i, (x, target) in enumerate(micro_batches, 1):
            with nullcontext() if i == len(micro_batches) else wrapped.no_sync():
                ((wrapped(x) - target).square().mean() / len(micro_batches)).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), max_norm).item())
        optimizer.step()
    return norms, {name: p.detach() for name, p in model.named_parameters()}
"""

# The first of PyTorch's two.
_FSDP1 = """
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel


def port_training(model, steps, lr, max_norm):
    model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    norms = []
    for micro_batches in steps:
        optimizer.zero_grad()
        for i, (x, target) in enumerate(micro_batches, 1):
            with nullcontext() if i == len(micro_batches) else model.no_sync():
                ((model(x) - target).square().mean() / len(micro_batches)).backward()
        # Its own clip_grad_norm_ is in float32.
        parts = [p.grad for p in model.parameters() if p.grad is not None]
        square = sum(part.square().sum() for part in parts)
        dist.all_reduce(square)
        norms.append(square.sqrt().item())
        for part in parts:
            part *= min(1.0, max_norm / (norms[-1] + 1e-6))
        optimizer.step()
    return norms, get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
"""

# No wrapper: whole weights, and a rank's part of each gradient.
_BY_HAND = """
import torch
import torch.distributed as dist


def port_training(model, steps, lr, max_norm):
    rank, size = dist.get_rank(), dist.get_world_size()
    weights, norms = list(model.parameters()), []
    for micro_batches in steps:
        model.zero_grad()
        for x, target in micro_batches:
            ((model(x) - target).square().mean() / len(micro_batches)).backward()
        parts = []
        for w in weights:
            parts.append(torch.empty(w.numel() // size, dtype=w.dtype))
            dist.reduce_scatter_tensor(parts[-1], w.grad.flatten() / size)
        square = sum(part.square().sum() for part in parts)
        dist.all_reduce(square)
        norm = square.sqrt()
        norms.append(norm.item())
        factor = min(1.0, max_norm / (norm.item() + 1e-6))
        with torch.no_grad():
            for w, part in zip(weights, parts, strict=True):
                mine = w.detach().flatten().chunk(size)[rank] - lr * factor * part
                whole = torch.empty(w.numel(), dtype=w.dtype)
                dist.all_gather_into_tensor(whole, mine)
                w.copy_(whole.view_as(w))
    return norms, {name: w.detach() for name, w in model.named_parameters()}
"""

MUTANTS = [
    (
        "the optimizer is made before the sharding",
        "Whose parameters does the optimizer hold",
        ((_MADE, ""), (_SHARD, _MADE + _SHARD)),
    ),
    ("the norm of a rank's part", "Of which part of the gradients", ((_CLIP, _LOCAL + _CLIP), (_NORM, "        norms.append(local.item())\n"))),
    ("not clipped", "Were the gradients scaled", ((_CLIP, "        norm = nn.utils.clip_grad_norm_(model.parameters(), float('inf'))\n"),)),
    ("the sum of the micro-batches", "By how many micro-batches", ((".square().mean() / len(micro_batches)", ".square().mean()"),)),
    ("never cleared", "Which gradients are still there", (("        optimizer.zero_grad()\n", ""),)),
    ("cleared for each micro-batch", "Which micro-batches are in the gradient", ((_SYNC, "            optimizer.zero_grad()\n"),)),
    ("reduced after each micro-batch", "After which micro-batch", ((_SYNC, ""),)),
    ("replicas", "Which rank needs which part", _DDP),
    ("a rank's rows", "all (", ((_STATE, "{name: p.to_local() for name, p in model.named_parameters()}"),)),
    (
        "the course's",
        "the answer uses dtcourse.sharding",
        (("    from torch.distributed.fsdp import fully_shard\n", "    from dtcourse.sharding import fully_shard\n"),),
    ),
]  # fmt: skip

ACCEPTED = [
    ("FullyShardedDataParallel", _FSDP1),
    ("by hand", _BY_HAND),
    (
        "kept whole from forward to backward",
        ((_MODEL, "    fully_shard(model, mesh=mesh, reshard_after_forward=False)\n"),),
    ),
]

NOTHING = [
    (
        "nothing is trained",
        "\ndef port_training(model, steps, lr, max_norm):\n    return [0.0] * len(steps), model.state_dict()\n",
    ),
]
