"""Answers to low_rank_means: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_LESSONS = """
import torch
import torch.distributed as dist


def my_power_sgd(m, q):
    p = m @ q
    dist.all_reduce(p)
    p = torch.linalg.qr(p).Q
    q = m.T @ p / dist.get_world_size()
    dist.all_reduce(q)
    return p @ q.T, q


def low_rank_means(gradients, qs, residuals):
    means, new_qs = [], []
    for g, q in zip(gradients, qs):
        if q is None:
            g = g / dist.get_world_size()
            dist.all_reduce(g)
            means.append(g)
            new_qs.append(None)
        else:
            mean, q = my_power_sgd(g, q)
            means.append(mean)
            new_qs.append(q)
    return means, new_qs, [torch.zeros_like(g) for g in gradients]
"""

_EXACT = """
import torch
import torch.distributed as dist


def low_rank_means(gradients, qs, residuals):
    means = []
    for g in gradients:
        g = g / dist.get_world_size()
        dist.all_reduce(g)
        means.append(g)
    return means, qs, residuals
"""

_LEFT = "torch.zeros_like(w) if b is None else w - mean"

MUTANTS = [
    ("the lesson's own, matrix by matrix", "without residuals", _LESSONS),
    (
        "the lesson's own with residuals, one matrix after the other",
        "What can travel together",
        _LESSONS.replace(
            "for g, q in zip(gradients, qs):",
            "left = []\n    for g, q, r in zip(gradients, qs, residuals):",
        )
        .replace("        if q is None:", "        g = g + r\n        if q is None:")
        .replace(
            "mean, q = my_power_sgd(g, q)",
            "mean, q = my_power_sgd(g, q)\n            left.append(g - mean)",
        )
        .replace(
            "            new_qs.append(None)",
            "            new_qs.append(None)\n            left.append(torch.zeros_like(g))",
        )
        .replace("[torch.zeros_like(g) for g in gradients]", "left"),
    ),
    ("the plain mean of all", "Is P orthonormal", _EXACT),
    (
        "the sum",
        "divided by the ranks, once",
        (("for t in tensors]) / p\n", "for t in tensors])\n"),),
    ),
    ("P as it is", "Is P orthonormal", (("torch.linalg.qr(f).Q for f", "f for f"),)),
    (
        "each rank's own P",
        "the same on all ranks",
        (
            (
                "torch.linalg.qr(f).Q for f, q in zip(first,",
                "torch.linalg.qr(f @ q).Q for f, q in zip(wanted,",
            ),
        ),
    ),
    ("residuals are not added", "without residuals", (("[g + r for g", "[g for g"),)),
    (
        "the first Q again",
        "which one is the last",
        (("return means, new_qs, left", "return means, qs, left"),),
    ),
    (
        "what this rank's own approximation leaves",
        "what of it is in the mean that arrived",
        ((_LEFT, "torch.zeros_like(w) if b is None else w - b @ (b.T @ w)"),),
    ),
    (
        "what is left of the gradient alone",
        "what of it is in the mean that arrived",
        (("for w, b, mean in zip(wanted, ps", "for w, b, mean in zip(gradients, ps"),),
    ),
    (
        "the vectors travel with the Qs, too",
        "or twice",
        (
            (
                "zip(wanted, ps, strict=True) if b is not None]))",
                "zip(wanted, ps, strict=True) if b is not None] + wanted[1:2]))",
            ),
        ),
    ),
    (
        "only rank 0 makes the second mean",
        "rank",
        (
            (
                "        dist.all_reduce(flat)\n",
                "        if len(tensors) == 5 or dist.get_rank() == 0:\n            dist.all_reduce(flat)\n",
            ),
        ),
    ),
    (
        "PyTorch's own",
        "torch.distributed.algorithms",
        """
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook


def low_rank_means(gradients, qs, residuals):
    return powerSGD_hook.PowerSGDState(None, 2)
""",
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """import torch


def low_rank_means(gradients, qs, residuals):
    means, new, left = [], [], []
    for g, q, r in zip(gradients, qs, residuals):
        wanted = g + r
        mean = torch.stack(everyones(wanted)).mean(0)
        if q is not None:
            p = torch.linalg.qr(mean @ q).Q
            q = mean.T @ p
            mean = p @ q.T
        means.append(mean)
        new.append(q)
        left.append(torch.zeros_like(g) if q is None else wanted - mean)
    return means, new, left
""",
    ),
]

ACCEPTED = [
    (
        "orthonormal by Cholesky",
        (
            (
                "torch.linalg.qr(f).Q for f",
                "f @ torch.linalg.inv(torch.linalg.cholesky(f.T @ f).mT) for f",
            ),
        ),
    ),
    (
        "in place in one buffer, vectors with the Qs",
        """
import torch
import torch.distributed as dist


def low_rank_means(gradients, qs, residuals):
    world = dist.get_world_size()
    matrices = [i for i, q in enumerate(qs) if q is not None]
    vectors = [i for i, q in enumerate(qs) if q is None]
    wanted = {i: gradients[i] + residuals[i] for i in matrices}
    ps = {i: wanted[i] @ qs[i] for i in matrices}
    flat = torch.cat([ps[i].reshape(-1) for i in matrices])
    dist.all_reduce(flat)
    at = 0
    for i in matrices:
        size = ps[i].numel()
        ps[i] = torch.linalg.svd(flat[at : at + size].view_as(ps[i]), full_matrices=False).U
        at += size
    flat = torch.cat([(wanted[i].T @ ps[i]).reshape(-1) for i in matrices] + [gradients[i] for i in vectors])
    dist.all_reduce(flat)
    flat /= world
    means, new, left, at = list(gradients), list(qs), [torch.zeros_like(g) for g in gradients], 0
    for i in matrices:
        new[i] = flat[at : at + qs[i].numel()].view_as(qs[i])
        at += qs[i].numel()
        means[i] = ps[i] @ new[i].T
        left[i] = wanted[i] - means[i]
    for i in vectors:
        means[i] = flat[at : at + len(gradients[i])]
        at += len(gradients[i])
    return means, new, left
""",
    ),
]

NOTHING = [
    (
        "what came in",
        "\ndef low_rank_means(gradients, qs, residuals):\n    return gradients, qs, residuals\n",
    ),
    (
        "zeros",
        "\nimport torch\n\n\ndef low_rank_means(gradients, qs, residuals):\n    return [torch.zeros_like(g) for g in gradients], qs, residuals\n",
    ),
]
