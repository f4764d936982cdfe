"""A step whose loss is the sum of two means, over other things each, on ranks with other numbers of them."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtcourse.course.judging import Answer, Each, Exercise, require
from dtcourse.plural import plural

MEANS = Exercise(
    "two_means",
    lesson="27",
    title="Two means in one backward",
    takes=("two_means",),
    target="the gradient of one process to 1e-10 at 1, 2, 3 and 4 ranks; 1 average by DDP, and 64 (p - 1) bytes "
    "besides",
    forbidden=("dtcourse.heterogeneous", "dtcourse.data_parallel", "dtcourse.parameters"),
)

Part = tuple[Tensor, Tensor]
SHAPES = ((5, 6), (5,), (4, 5), (4,))  # of the parameters
NUMBERS = sum(torch.Size(shape).numel() for shape in SHAPES)
BESIDES = 64  # bytes, times p - 1


def _net(weights: list[Tensor]) -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    with torch.no_grad():
        for parameter, value in zip(net.parameters(), weights, strict=True):
            parameter.copy_(value)
    return net


def _step(two_means: Any, weights: list[Tensor], own: Part, of_class: Tensor) -> Any:
    """In a rank: the gradients that the answer leaves, and the bytes that are sent in its call."""
    from torch.nn.parallel import DistributedDataParallel

    from dtcourse.collectives import traffic

    net = _net(weights)
    model = DistributedDataParallel(net)
    with traffic.counting() as seen:
        two_means(model, own[0].clone(), own[1].clone(), of_class.clone())
    return [None if p.grad is None else p.grad for p in net.parameters()], seen.bytes_sent()


def drawn(ranks: int, odd: str = "") -> tuple[list[Tensor], list[Part], Tensor]:
    """Weights of the net, each rank's samples, and the weights of the classes.

    odd: "empty": a rank has no sample; "ignored": none of its labels counts
    """
    weights = [torch.randn(shape, dtype=torch.double) for shape in SHAPES]
    of_class = torch.rand(4, dtype=torch.double) * 3 + 0.2
    sizes = random.sample(range(2, 12), ranks)
    parts, at = [], random.randrange(ranks)
    for rank, size in enumerate(sizes):
        size = 0 if rank == at and odd == "empty" else size
        y = torch.randint(4, (size,))
        # Another share of them on each rank; the first one counts, so that there is a mean.
        y[1 : 1 + rank] = -100
        if rank == at and odd == "ignored":
            y[:] = -100
        parts.append((torch.randn(size, 6, dtype=torch.double), y))
    return weights, parts, of_class


def alone(
    weights: list[Tensor],
    parts: list[Part],
    of_class: Tensor,
    first_by: str = "whole",
    second_by: str = "whole",
) -> Tensor:
    """One process's gradient, as one vector.

    first_by, second_by: "whole": a mean over all ranks' samples; "ranks": the mean of the ranks' means; "samples":
                         these weighted by the ranks' samples
    """
    net = _net(weights)

    def first(part: Part) -> Tensor:
        if not bool((part[1] >= 0).any()):
            return net(part[0]).sum() * 0
        return F.cross_entropy(net(part[0]), part[1], weight=of_class)

    def second(part: Part) -> Tensor:
        return 0.01 * net(part[0]).logsumexp(1).square().sum() / max(1, len(part[1]))

    whole = torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
    loss = net(whole[0]).sum() * 0
    for mean, by in ((first, first_by), (second, second_by)):
        if by == "whole":
            loss = loss + mean(whole)
            continue
        counts = [len(y) if by == "samples" else 1 for _, y in parts]
        for part, count in zip(parts, counts, strict=True):
            loss = loss + count / sum(counts) * mean(part)
    loss.backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


def by_labels(weights: list[Tensor], parts: list[Part], of_class: Tensor) -> Tensor:
    """What comes of dividing the cross-entropies by the number of labels that count, not by their weights."""
    net, y = _net(weights), torch.cat([y for _, y in parts])
    logits = net(torch.cat([x for x, _ in parts]))
    loss = F.cross_entropy(logits, y, weight=of_class, reduction="sum") / (y >= 0).sum()
    (loss + 0.01 * logits.logsumexp(1).square().mean()).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


def second_by_labels(weights: list[Tensor], parts: list[Part], of_class: Tensor) -> Tensor:
    """What comes of a second mean over the samples whose labels count."""
    net, y = _net(weights), torch.cat([y for _, y in parts])
    logits = net(torch.cat([x for x, _ in parts]))
    second = 0.01 * logits[y >= 0].logsumexp(1).square().mean()
    (F.cross_entropy(logits, y, weight=of_class) + second).backward()
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])


def _hint(got: Tensor, right: Tensor, job: tuple[list[Tensor], list[Part], Tensor]) -> str:
    ranks = len(job[1])
    if got.isnan().any():
        return "Some of it is not a number. What is divided by what on a rank where nothing counts?"
    if torch.allclose(got, right, rtol=0, atol=1e-6 * float(right.abs().max())):
        return "It is right to some digits. In which precision are the numbers that ranks tell each other?"
    if torch.allclose(got * ranks, right, rtol=0, atol=1e-9) and ranks > 1:
        return f"It is {ranks} times too small: what does DDP divide by?"
    stands = "The second mean is right. What does a rank's cross-entropy stand for?"
    others = (
        (
            alone(*job, "ranks", "ranks"),
            "That is the mean of the ranks' means. How many samples stand behind each?",
        ),
        (alone(*job, "ranks"), stands),
        (alone(*job, "samples"), stands),
        (
            alone(*job, "whole", "ranks"),
            "The first mean is right. What does each rank's second mean stand for?",
        ),
        (second_by_labels(*job), "The first mean is right. Over which samples is the second?"),
        (by_labels(*job), "What does F.cross_entropy divide by, where classes have weights?"),
    )
    for other, words in others:
        if torch.allclose(got, other, rtol=0, atol=1e-9):
            return words
    return "What is each of the two means divided by, and who knows that number of all ranks?"


def _require(answer: Answer, ranks: int, odd: str = "") -> None:
    job = weights, parts, of_class = drawn(ranks, odd)
    right = alone(*job)
    run = answer.run(_step, ranks, weights, Each(parts), of_class, backend="ring", timeout=8.0)
    where = {
        "empty": ", of which one has no sample",
        "ignored": ", one of them without a label that counts",
    }
    found = []
    for rank in range(ranks):
        gradients, _ = run[rank]
        require(
            isinstance(gradients, list) and all(isinstance(g, Tensor) for g in gradients),
            "No gradient was left behind. Was backward called on every rank?",
        )
        found.append(torch.cat([g.flatten() for g in gradients]))
    alike = all(torch.allclose(one, found[0], rtol=0, atol=1e-9, equal_nan=True) for one in found)
    for rank, got in enumerate(found):
        off = float((got - right).abs().max() / right.abs().max())
        hint = "Ranks are left with different gradients: what has DDP averaged, and what not?"
        require(
            off < 1e-10,
            f"On {plural(ranks, 'rank')}{where.get(odd, '')}, rank {rank}'s gradient is off by {off:.1e} of its size. "
            f"{_hint(got, right, job) if alike else hint}",
        )


@MEANS.check("both means are one process's", points=3)
def check_means(answer: Answer) -> None:
    """Each rank has samples, and labels that count."""
    for ranks in (1, 2, 3, 4):
        _require(answer, ranks)


@MEANS.check("ranks on which nothing counts", points=2, needs=("check_means",))
def check_nothing(answer: Answer) -> None:
    """No sample at all, or none of a label that counts."""
    for ranks in (2, 4):
        for odd in ("empty", "ignored"):
            _require(answer, ranks, odd)


@MEANS.check("one average, and a few bytes", points=3, needs=("check_means",))
def check_bytes(answer: Answer) -> None:
    """Of the answer's call alone: what DDP sends when it is made is not counted."""
    for ranks in (2, 3, 4):
        weights, parts, of_class = drawn(ranks)
        run = answer.run(_step, ranks, weights, Each(parts), of_class, backend="ring", timeout=8.0)
        average, sent = 2 * (ranks - 1) * 8 * NUMBERS, sum(told for _, told in run)
        most = average + BESIDES * (ranks - 1)
        require(
            sent <= most,
            f"On {plural(ranks, 'rank')} all together send {sent:,} bytes in a step; one average of the gradients is "
            f"{average:,}, and {BESIDES * (ranks - 1)} more are allowed. How often does DDP average, and which "
            "numbers do ranks need of each other?",
        )
        require(
            sent >= average,
            f"On {plural(ranks, 'rank')} all together send {sent:,} bytes in a step, and one average of the gradients "
            f"is {average:,}. Where does the rest come from, if DDP averages once?",
        )
