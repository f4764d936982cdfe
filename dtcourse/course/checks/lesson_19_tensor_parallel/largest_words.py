"""The k largest logits of a vocabulary that is cut, without gathering it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Each, Exercise, require, require_received

LARGEST = Exercise(
    "largest_words",
    lesson="19",
    title="The k largest words",
    takes=("largest_words",),
    target="torch.topk of the whole on 2 to 4 ranks; each rank sends at most 16 (p - 1) N k bytes",
    forbidden=("dtcourse.tensor_parallel", "torch.distributed.tensor"),
)

Case = tuple[int, int, int, int, float]  # ranks, tokens, words, k, added to all logits


def _found(largest_words: Any, mine: Tensor, first: int, k: int) -> Any:
    values, words = largest_words(mine, first, k)
    return values, words


def _run(answer: Answer, case: Case, **options: Any) -> tuple[Any, Tensor, Tensor]:
    ranks, tokens, words, k, shift = case
    # In steps of 1/64, which float32 holds exactly, and no two of a token alike: which of two is first is nobody's.
    steps = torch.randint(1, 9, (tokens, words)).cumsum(1) - 2 * words
    logits = steps.gather(1, torch.rand(tokens, words).argsort(1)) / 64 + shift
    firsts = range(0, ranks * (length := -(-words // ranks)), length)
    slices = Each([logits[:, first : first + length].clone() for first in firsts])
    run = answer.run(_found, ranks, slices, Each(list(firsts)), k, **options)
    return run, *logits.topk(k, dim=1)


def _require(answer: Answer, case: Case, hint: str) -> None:
    ranks, tokens, words, k, _ = case
    where = f"{words} words on {ranks} ranks, k = {k}"
    run, values, numbers = _run(answer, case)
    for rank in range(ranks):
        got = run[rank]
        require(
            isinstance(got, (list, tuple)) and all(isinstance(one, Tensor) for one in got),
            f"{where}: two tensors are asked for, values and words; rank {rank} returned {type(got[0]).__name__}.",
        )
        for name, mine in zip(("values", "words"), got, strict=True):
            require(
                tuple(mine.shape) == (tokens, k),
                f"{where}: the {name} on rank {rank} have shape {tuple(mine.shape)}, and there are {k} for each of "
                f"{tokens} tokens. {hint}",
            )
        wrong = (got[0] - values).abs().amax(1) > 1e-6
        require(
            not wrong.any(),
            f"{where}: the values on rank {rank} are not the {k} largest in falling order, for {int(wrong.sum())} "
            f"of {tokens} tokens. {hint}",
        )
        require(
            torch.equal(got[1].long(), numbers),
            f"{where}: the values on rank {rank} are right, and the words are not: the first should be "
            f"{int(numbers[0, 0])}, and is {int(got[1][0, 0])}. A word's number in a rank's slice is not its number "
            "in the vocabulary.",
        )


@LARGEST.check("values and words of the whole vocabulary", points=3)
def check_equal(answer: Answer) -> None:
    """Slices that are much larger than k, one of them shorter than the others."""
    _require(
        answer,
        (3, 6, 100, 4, 0.0),
        "All k may be on one rank, or on several: what does each have to offer?",
    )


@LARGEST.check("more than a rank has", points=3, needs=("check_equal",))
def check_short(answer: Answer) -> None:
    """k above the words of a slice; all logits below zero."""
    for case in ((4, 3, 10, 5, -50.0), (3, 2, 7, 7, -50.0)):
        _require(
            answer,
            case,
            "A rank with fewer words than k offers all that it "
            "has. What fills the rest, where all logits are below zero?",
        )


@LARGEST.check("at most 16 (p - 1) N k bytes from each rank", points=2, needs=("check_equal",))
def check_traffic(answer: Answer) -> None:
    """With many more words than k."""
    for ranks, tokens, words, k in ((2, 4, 600, 3), (4, 4, 600, 3)):
        run, _, _ = _run(answer, (ranks, tokens, words, k, 0.0), backend="ring", record=True)
        limit = 16 * (ranks - 1) * tokens * k
        for rank in range(ranks):
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent <= limit,
                f"{words} words on {ranks} ranks, k = {k}: rank {rank} sends {sent:,} bytes, and {limit:,} are "
                "enough. Can a logit that is not among its own rank's k largest be among the k largest of all?",
            )
            # Of each token a logit of another rank, at least.
            where = f"{words} words on {ranks} ranks, k = {k}: rank {rank}"
            require_received(where, run.traffic.bytes_received(rank), 4 * tokens)
