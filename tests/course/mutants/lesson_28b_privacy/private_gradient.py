"""Answers to private_gradient: see test_exercises.py."""

_NORMS = "    norms = errors.norm(dim=1) * x.norm(dim=1)\n"
_SCALE = "    scale = max_norm / norms.clamp(min=max_norm)\n"
_TOTAL = "    total = (scale[:, None] * errors).T @ x\n"
_WHO = "    if dist.get_rank() == 0:\n"
_SEED = "        draw.seed()\n"
_NOISE = "        total = total + noise_multiplier * max_norm * noise\n"
_REDUCE = "    dist.all_reduce(total)\n"
_RETURN = "    return total / expected\n"

MUTANTS = [
    (
        "the batch's gradient is clipped",
        "clipped by itself",
        ((_TOTAL, "    total = errors.T @ x\n    total = total * (max_norm / max(total.norm().item(), max_norm))\n"),),
    ),
    (
        "the length of the error alone",
        "The length is that of the whole gradient by W",
        ((_NORMS, "    norms = errors.norm(dim=1)\n"),),
    ),
    ("not clipped", "That is not clipped", ((_SCALE, "    scale = torch.ones_like(norms)\n"),)),
    (
        "short gradients become longer",
        "Short gradients were made longer",
        ((_SCALE, "    scale = max_norm / norms.clamp(min=1e-12)\n"),),
    ),
    (
        "divided by a length of 0",
        "A sample's gradient may be 0",
        ((_SCALE, "    scale = (max_norm / norms).clamp(max=float('inf'))\n"),),
    ),
    ("each rank's own samples", "Where are the others' samples", ((_REDUCE, ""),)),
    (
        "divided by the batch that came",
        "How many are expected",
        ((_RETURN, "    count = torch.tensor([float(len(x))])\n    dist.all_reduce(count)\n    return total / count.item()\n"),),
    ),
    ("the sum", "By what is it divided", ((_RETURN, "    return total\n"),)),
    (
        "the mean over the ranks",
        "expected counts all of them",
        ((_RETURN, "    return total / expected / dist.get_world_size()\n"),),
    ),
    (
        "who has no sample stays away",
        "rank",
        ((_REDUCE, "    if len(x):\n        dist.all_reduce(total)\n"),),
    ),
    ("no noise", "There is none", ((_NOISE, ""),)),
    ("noise on every rank", "How often is noise added", ((_WHO, "    if True:\n"),)),
    (
        "noise after the division",
        "to what has been divided already",
        ((_NOISE, "        total = total + expected * noise_multiplier * max_norm * noise\n"),),
    ),
    (
        "noise of the multiplier alone",
        "The deviation is noise_multiplier times max_norm",
        ((_NOISE, "        total = total + noise_multiplier * noise\n"),),
    ),
    (
        "each rank's noise after the sum",
        "Who draws the noise",
        ((_REDUCE, ""), (_WHO, "    dist.all_reduce(total)\n    if True:\n")),
    ),
    (
        "a generator that nobody has seeded",
        "it adds the same noise twice",
        ((_SEED, ""),),
    ),
    (
        "a seed from the configuration",
        "it adds the same noise twice",
        ((_SEED, "        draw.manual_seed(28)\n"),),
    ),
    (
        "PyTorch's own generator, as it is",
        "From which seed does the generator begin",
        (("        noise = torch.randn(w.shape, generator=draw, dtype=w.dtype)\n", "        noise = torch.randn(w.shape, dtype=w.dtype)\n"),),
    ),
    (
        "the course's own",
        "dtcourse.federated",
        """
import torch
import torch.distributed as dist

from dtcourse.federated import clipped


def private_gradient(w, x, y, max_norm, noise_multiplier, expected):
    each = (x @ w.T - y)[:, :, None] * x[:, None]
    total = clipped(each.flatten(1), max_norm).sum(0).view_as(w)
    dist.all_reduce(total)
    return total / expected
""",
    ),
    (
        "no noise where rank 0 has no sample",
        "There is none",
        ((_WHO, "    if len(x) and dist.get_rank() == 0:\n"),),
    ),
    (
        "zeros where nobody has a sample",
        "There is none",
        ((_RETURN, "    count = torch.tensor(len(x))\n    dist.all_reduce(count)\n    return total / expected if count else 0 * w\n"),),
    ),
    (
        "each rank adds up in an order of its own",
        "in the same order",
        ((_REDUCE, "    parts = [torch.empty_like(total) for _ in range(dist.get_world_size())]\n    dist.all_gather(parts, total)\n    at = dist.get_rank()\n    total = total + sum(parts[:at] + parts[at + 1 :])\n"),),
    ),
    (
        "uniform noise",
        "is not normal",
        ((_NOISE, _NOISE.replace("* noise", "* (2 * torch.rand(w.shape, generator=draw, dtype=w.dtype) - 1) * 3**0.5")),),
    ),
    (
        "Laplace's noise",
        "is not normal",
        ((_NOISE, _NOISE.replace("* noise", "* torch.distributions.Laplace(0.0, 0.5**0.5).sample(w.shape).double()")),),
    ),
    (
        "in single precision",
        "right but for rounding",
        ((_TOTAL, "    total = ((scale[:, None] * errors).float().T @ x.float()).double()\n"),),
    ),
    (
        "something is added to the length",
        "nothing added to a length",
        ((_SCALE, "    scale = (max_norm / (norms + 1e-6)).clamp(max=1)\n"),),
    ),
    (
        "a seed from Python's generator",
        "the system itself",
        ((_SEED, "        import random\n        draw.manual_seed(random.getrandbits(62))\n"),),
    ),
    (
        "each rank's share of the noise, from the same numbers",
        "do two ranks draw the same numbers",
        ((_WHO, "    if True:\n"), (_SEED, "        draw.manual_seed(5)\n"), (_NOISE, _NOISE.replace("* noise", "* noise / dist.get_world_size() ** 0.5"))),
    ),
    (
        "the mean over none",
        "what is a mean over none",
        ((_TOTAL, "    each = scale[:, None, None] * errors[:, :, None] * x[:, None]\n    total = each.mean(0) * len(x)\n"),),
    ),
]  # fmt: skip

ACCEPTED = [
    (
        "sample by sample, and each rank adds its share of the noise",
        """
import math
import random

import torch
import torch.distributed as dist


def private_gradient(w, x, y, max_norm, noise_multiplier, expected):
    draw = torch.Generator().manual_seed(random.SystemRandom().getrandbits(62))
    share = noise_multiplier * max_norm / math.sqrt(dist.get_world_size())
    total = torch.normal(0.0, 1.0, w.shape, generator=draw, dtype=w.dtype) * share
    for one, target in zip(x, y):
        gradient = torch.outer(w @ one - target, one)
        length = gradient.norm().item()
        if length > max_norm:
            gradient = gradient * (max_norm / length)
        total += gradient
    dist.all_reduce(total)
    return total.div_(expected)
""",
    ),
    (
        "by torch.func; rank 0 adds up what is gathered, and broadcasts it",
        """
import numpy as np
import torch
import torch.distributed as dist
from torch.func import grad, vmap


def loss(w, one, target):
    return (w @ one - target).square().sum() / 2


def private_gradient(w, x, y, max_norm, noise_multiplier, expected):
    total = torch.zeros_like(w)
    if len(x):
        each = vmap(grad(loss), in_dims=(None, 0, 0))(w, x, y)
        norms = each.flatten(1).norm(dim=1)
        factors = torch.where(norms > max_norm, max_norm / norms, torch.ones_like(norms))
        total = torch.einsum("b,bkd->kd", factors, each)
    everyone = [torch.empty_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, total.contiguous())
    found = sum(everyone)
    found += torch.from_numpy(np.random.default_rng().normal(size=tuple(w.shape))) * noise_multiplier * max_norm
    found = (found / expected).contiguous()
    dist.broadcast(found, src=0)
    return found
""",
    ),
]

NOTHING = [
    (
        "zeros",
        "\ndef private_gradient(w, x, y, max_norm, noise_multiplier, expected):\n    return 0 * w\n",
    ),
    (
        "nothing",
        "\ndef private_gradient(w, x, y, max_norm, noise_multiplier, expected):\n    return None\n",
    ),
]
