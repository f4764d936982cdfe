"""Answers to repair_programs: see test_exercises.py. The notebook's own cells hold the broken programs."""

_RETURN = 'return {f"program_{f.__name__}": f for f in (a, b, c, d, e, f, g, h)}'
_A = "            dist.all_reduce(mean)\n"
_SORTED = "means = {name: gradients[name].clone() for name in sorted(gradients)}"
_SOURCE = "dist.broadcast(weights, src=members[newest], group=group)"
_NOISE = "torch.manual_seed(1_000_000 * (seed + 1) + dist.get_rank())"
_ORDER = "make = torch.Generator().manual_seed(1_000 * seed + epoch)"
_SCALE = "(F.mse_loss(x @ w, y) / len(parts)).backward()"


def _as_it_is(letter: str) -> tuple[tuple[str, str], ...]:
    """All repaired but one."""
    return ((_RETURN, f"{_RETURN} | {{'program_{letter}': program_{letter}}}"),)


MUTANTS = [
    ("a as it is", "Which call of the other ranks does the second call", _as_it_is("a")),
    ("b as it is", "what else is there as many of", _as_it_is("b")),
    ("c as it is", "whatever share they have", _as_it_is("c")),
    ("d as it is", "which of them stand in one column", _as_it_is("d")),
    ("e as it is", "one among all ranks, or one among", _as_it_is("e")),
    ("f as it is", "Which (seed, rank) may have one stream", _as_it_is("f")),
    ("g as it is", "has the order of epoch", _as_it_is("g")),
    ("h as it is", "Which parameters has DDP seen", _as_it_is("h")),
    ("the collective is gone", "program_a, on rank 0", ((_A, "            mean.mul_(1)\n"),)),
    (
        "hard-coded",
        "program_b, on rank 0",
        (
            (
                _RETURN,
                f'{_RETURN} | {{"program_b": lambda w, parts: torch.ones(4, dtype=torch.double)}}',
            ),
        ),
    ),
    (
        "seed + rank",
        "Which (seed, rank) may have one stream",
        ((_NOISE, "torch.manual_seed(seed + 1 + dist.get_rank())"),),
    ),
    (
        "a hundred seeds further per rank",
        "may have one stream",
        ((_NOISE, "torch.manual_seed(seed + 100 * (dist.get_rank() + 1))"),),
    ),
    (
        "another noise each time",
        "What is a run's seed for",
        ((_NOISE, "torch.seed()"),),
    ),
    (
        "each rank shuffles for itself",
        "not every sample is read once",
        (
            (
                _ORDER,
                "make = torch.Generator().manual_seed(1_000 * seed + 7 * dist.get_rank() + epoch)",
            ),
        ),
    ),
    ("the first member's", "one among all ranks, or one among", ((_SOURCE, _SOURCE.replace("newest", "0")),)),
    ("a list", "a dict is wanted", ((_RETURN, "return [a, b, c, d, e, f, g, h]"),)),
]  # fmt: skip

NOTHING = [
    ("no program", "\ndef repaired():\n    return {}\n"),
    (
        "programs that return nothing",
        '\ndef repaired():\n    return {f"program_{x}": lambda *given: None for x in "abcdefgh"}\n',
    ),
]

_OTHERS = """
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


def everyone(tensor, group=None):
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(found, tensor.contiguous(), group=group)
    return torch.stack(found)


def repaired():
    def a(gradients):
        names = sorted(gradients, reverse=True)
        flat = torch.cat([gradients[n].flatten() for n in names])
        parts = everyone(flat).mean(0).split([gradients[n].numel() for n in names])
        return {n: p.view_as(gradients[n]) for n, p in zip(names, parts)}

    def b(weight, parts):
        x, y = (torch.cat([part[i] for part in parts]) for i in (0, 1))
        return everyone(2 * x.T @ (x @ weight - y) / len(y)).mean(0)

    def c(labels, guesses):
        both = [None] * dist.get_world_size()
        dist.all_gather_object(both, (int((labels == guesses).sum()), len(labels)))
        return sum(right for right, _ in both) / sum(n for _, n in both)

    def d(loss, columns):
        return everyone(loss)[dist.get_rank() % columns :: columns].mean(0)

    def e(step, weights, members):
        both = [None] * dist.get_world_size()
        dist.all_gather_object(both, (step.item(), weights))
        if dist.get_rank() in members:
            return max((both[rank] for rank in members), key=lambda one: one[0])[1]

    def f(seed, length):
        torch.manual_seed(seed)
        start = torch.randn(length)
        own = torch.Generator().manual_seed(hash((seed, dist.get_rank(), "noise".__len__())) % 2**31)
        return start, torch.randn(length, generator=own)

    def g(total, epochs, seed):
        make, read = torch.Generator().manual_seed(seed), []
        for _ in range(epochs):
            order = torch.randperm(total, generator=make).tolist()
            read.append(order[dist.get_rank() :: dist.get_world_size()])
        return read

    def h(trunk, head, x, y):
        leaves = [trunk.clone().requires_grad_(), head.clone().requires_grad_()]
        F.mse_loss(x @ leaves[0].T @ leaves[1].T, y).backward()
        return [everyone(leaf.grad).mean(0) for leaf in leaves]

    return dict(program_a=a, program_b=b, program_c=c, program_d=d, program_e=e, program_f=f, program_g=g, program_h=h)
"""

ACCEPTED = [
    ("by gathering, in all of them", _OTHERS),
    (
        "the other form of some",
        (
            (_SORTED, "names = sorted(gradients, key=lambda n: n[::-1])\n        means = {n: gradients[n].clone() for n in names}"),
            (_SCALE, "(F.mse_loss(x @ w, y, reduction='sum') / len(y) / len(parts)).backward()"),
            (_SOURCE, "dist.broadcast(weights, group_src=newest, group=group)"),
            (_NOISE, "torch.manual_seed((seed + 1) * 7919 * 1000 + dist.get_rank())"),
        ),
    ),
]  # fmt: skip
