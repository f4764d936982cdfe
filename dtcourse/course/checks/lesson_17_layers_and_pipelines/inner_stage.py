"""An inner stage that performs any list of actions."""

from __future__ import annotations

import random
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from dtcourse.course.judging import Answer, Each, Exercise, require, require_close
from dtcourse.plural import plural

INNER = Exercise(
    "inner_stage",
    lesson="17",
    title="An inner stage, in any order",
    takes=("inner_stage",),
    target="gradients to 1e-5 for any list, no more stashed than under way, and no rank stuck in 1F1B",
    forbidden=(
        "dtcourse.pipeline_parallel",
        "torch.distributed.pipelining",
        "torch.distributed.autograd",
        "torch.distributed.nn",
    ),
)

Actions = list[tuple[str, int]]
WIDTH, SAMPLES = 5, 3


class Forward:
    """One forward; it lives as long as something that the forward has saved."""


class Watched(nn.Module):
    """Layers that know how many micro-batches have activations saved, and how many had at once."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.alive: weakref.WeakSet[Forward] = weakref.WeakSet()
        self.most = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layers' output."""
        one = Forward()

        def pack(tensor: torch.Tensor) -> Any:
            self.alive.add(one)
            return one, tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept[1]):
            y = self.layers(x)
        self.most = max(self.most, len(self.alive))
        return y


def _layers(weight: torch.Tensor) -> nn.Sequential:
    layer = nn.Linear(WIDTH, WIDTH)
    with torch.no_grad():
        layer.weight.copy_(weight)
        layer.bias.zero_()
    return nn.Sequential(layer, nn.Tanh())


def _inner(inner_stage: Any, weight: torch.Tensor, x: torch.Tensor | None, actions: Actions) -> Any:
    """On an inner rank: its gradients and the most micro-batches stashed. On rank 0: the gradients that arrive."""
    import torch.distributed as dist

    rank, last = dist.get_rank(), dist.get_world_size() - 1
    if x is not None:
        return _first(x, actions)
    if rank == last:
        return _last(actions)
    stage = Watched(_layers(weight))
    inner_stage(stage, list(actions), (SAMPLES, WIDTH))
    gradients = [None if p.grad is None else p.grad.clone() for p in stage.parameters()]
    return gradients, stage.most


def _send(tensor: torch.Tensor, to: int) -> Any:
    import torch.distributed as dist

    return dist.isend(tensor, to)


def _first(x: torch.Tensor, actions: Actions) -> dict[int, torch.Tensor]:
    import torch.distributed as dist

    arrived, sent = {}, []
    for kind, i in actions:
        if kind == "F":
            sent.append(_send(x[i], 1))
        else:
            arrived[i] = torch.empty(SAMPLES, WIDTH)
            dist.recv(arrived[i], 1)
    for work in sent:
        work.wait()
    return arrived


def _last(actions: Actions) -> None:
    """Its loss is half the sum of squares over all micro-batches, so an output is its own gradient."""
    import torch.distributed as dist

    before = dist.get_rank() - 1
    came, sent = {}, []
    for kind, i in actions:
        if kind == "F":
            came[i] = torch.empty(SAMPLES, WIDTH)
            dist.recv(came[i], before)
        else:
            sent.append(_send(came[i], before))
    for work in sent:
        work.wait()


def _compare(answer: Answer, lists: Sequence[Actions], hint: str, where: str) -> list[int]:
    """Runs the answer and holds the gradients against one process; the most stashed, by inner rank."""
    ranks, m = len(lists), 1 + max(i for _, i in lists[0])
    weights = [torch.randn(WIDTH, WIDTH) for _ in range(ranks)]
    x = torch.randn(m, SAMPLES, WIDTH)
    first = Each([x, *[None] * (ranks - 1)])
    run = answer.run(_inner, ranks, Each(weights), first, Each(lists))
    model = nn.Sequential(*[_layers(w) for w in weights[1:-1]])
    whole = x.clone().requires_grad_()
    (model(whole).square().sum() / 2).backward()
    assert whole.grad is not None, "backward has just made it"
    for rank in range(1, ranks - 1):
        for p, got in zip(model[rank - 1].parameters(), run[rank][0], strict=True):
            what = "weight" if p.dim() == 2 else "bias"
            assert p.grad is not None, "backward has just made it"
            require_close(
                got,
                p.grad,
                f"On {plural(ranks, 'rank')}, {where}: rank {rank}'s gradient of the {what}",
                1e-5,
                hint,
                split=True,
            )
    for i, got in run[0].items():
        require_close(
            got,
            whole.grad[i],
            f"On {plural(ranks, 'rank')}, {where}: what rank 0 gets back for micro-batch {i}",
            1e-5,
            hint,
        )
    return [run[rank][1] for rank in range(1, ranks - 1)]


def _forwards(m: int) -> Actions:
    return [("F", i) for i in range(m)]


def _one_f_one_b(ranks: int, m: int) -> list[Actions]:
    lists = []
    for rank in range(ranks):
        warmup = min(m, ranks - rank)
        actions = _forwards(warmup)
        for i in range(m):
            actions += [("B", i)] + ([("F", warmup + i)] if warmup + i < m else [])
        lists.append(actions)
    return lists


def _any_order(m: int) -> Actions:
    """Some list in which each backward comes after its forward."""
    waiting, under_way, actions = random.sample(range(m), m), list[int](), Actions()
    while waiting or under_way:
        if waiting and (not under_way or random.random() < 0.5):
            under_way.append(waiting.pop())
            actions.append(("F", under_way[-1]))
        else:
            actions.append(("B", under_way.pop(random.randrange(len(under_way)))))
    return actions


def _under_way(actions: Actions) -> int:
    now = most = 0
    for kind, _ in actions:
        now += 1 if kind == "F" else -1
        most = max(most, now)
    return most


@INNER.check("GPipe's order: all forwards, then all backwards", points=3)
def check_gpipe(answer: Answer) -> None:
    """Both ways round."""
    hint = "Where does a micro-batch's gradient come from, where does it go, and what is added to what?"
    for ranks, m in ((3, 1), (3, 4), (4, 3)):
        actions = _forwards(m) + [("B", i) for i in range(m)]
        _compare(
            answer,
            [actions] * ranks,
            hint,
            f"GPipe with {plural(m, 'micro-batch', 'micro-batches')}",
        )


@INNER.check("any order of actions", points=2, needs=("check_gpipe",))
def check_any_order(answer: Answer) -> None:
    """Backwards last to first, and lists at random."""
    hint = "The list decides the order: which micro-batch's graph does this backward belong to?"
    backwards = _forwards(3) + [("B", i) for i in (2, 0, 1)]
    for ranks, actions in ((3, backwards), (3, _any_order(6)), (4, _any_order(5))):
        told = "the list " + " ".join(f"{kind}{i}" for kind, i in actions)
        _compare(answer, [actions] * ranks, hint, told)


@INNER.check("1F1B's lists: no rank gets stuck", points=3, needs=("check_gpipe",))
def check_1f1b(answer: Answer) -> None:
    """Neighbours send to each other at the same time."""
    hint = "The list decides the order: which micro-batch's graph does this backward belong to?"
    for ranks, m in ((3, 5), (4, 6)):
        _compare(answer, _one_f_one_b(ranks, m), hint, "1F1B")


@INNER.check(
    "activations freed by each backward", points=2, needs=("check_gpipe", "check_any_order")
)
def check_stash(answer: Answer) -> None:
    """The most micro-batches with saved tensors at once."""
    for ranks, m in ((3, 6), (4, 6)):
        actions = [action for i in range(m) for action in (("F", i), ("B", i))]
        for lists in ([actions] * ranks, [_any_order(m)] * ranks):
            found = _compare(answer, lists, "", "the most stashed is counted")
            for rank, most in enumerate(found, 1):
                bound = _under_way(lists[rank])
                require(
                    most <= bound,
                    f"On {plural(ranks, 'rank')}, rank {rank} had activations of "
                    f"{plural(most, 'micro-batch', 'micro-batches')} saved at once; its list has at most {bound} "
                    "under way. What still holds a graph after its backward?",
                )
