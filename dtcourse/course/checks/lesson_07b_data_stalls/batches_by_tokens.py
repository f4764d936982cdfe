"""As many tokens, not as many sequences."""

from __future__ import annotations

import random
from typing import Any

import torch

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.course.judging.samples import counted, seeds
from dtcourse.plural import plural

TOKENS = Exercise(
    "batches_by_tokens",
    lesson="07b",
    title="As many tokens, not as many sequences",
    takes=("token_batches",),
    target="0 sequences lost or twice; never above the budget; padding at most 3%; waiting at most 1.5% on 4 ranks",
    forbidden=("dtcourse.data",),
)


def _batches(
    token_batches: Any, cases: list[tuple[list[int], int, int]], seeds: list[int]
) -> list[list[Any]]:
    """What two ranks make that have other random states."""
    found = []
    for lengths, budget, size in cases:
        made = []
        for seed in seeds[:2]:
            torch.manual_seed(seed)
            random.seed(seed)
            steps = token_batches(list(lengths), budget, size)
            made.append([[[int(i) for i in batch] for batch in step] for step in steps])
        found.append(made)
    return found


def _cases(sizes: tuple[int, ...] = (1, 3, 4)) -> list[tuple[list[int], int, int]]:
    return [
        (
            [
                max(1, min(512, round(random.lognormvariate(4, 1))))
                for _ in range(random.randrange(9500, 10500))
            ],
            4096,
            size,
        )
        for size in sizes
    ]


def _require_whole_steps(steps: list[list[list[int]]], size: int, words: str) -> None:
    wrong = [len(step) for step in steps if len(step) != size or not all(step)]
    require(
        not wrong,
        f"{words}: {len(wrong)} steps do not have {size} batches with something in each. A rank without a batch, "
        "or with an empty one, leaves the others waiting. Which batches could be cut in two?",
    )


@TOKENS.check("each sequence once, one batch per rank and step, never above the budget", points=3)
def check_tokens(answer: Answer) -> None:
    """The same on every rank, whatever its random state."""
    # a last step that is full by chance in all of them is most unlikely
    cases = _cases((1, 3, 4, 7, 11))
    for (lengths, budget, size), (steps, others) in zip(
        cases, answer.call(_batches, cases, seeds()), strict=True
    ):
        words = f"{len(lengths)} sequences on {plural(size, 'rank')}"
        require(
            steps == others,
            f"{words}: two ranks with other random states make other batches. What must the shuffling depend on?",
        )
        _require_whole_steps(steps, size, words)
        counted(
            [i for step in steps for batch in step for i in batch],
            len(lengths),
            words,
            "Is the last step filled up by batches that have been used?",
            "What became of the batches that do not fill a whole step, and of the last batch?",
        )
        worst = max(max(lengths[i] for i in batch) * len(batch) for step in steps for batch in step)
        require(
            worst <= budget,
            f"{words}: a batch takes {worst:,} tokens, its padding included, where {budget:,} are allowed. "
            "What does one long sequence do to the batch that it comes into?",
        )


@TOKENS.check("padding at most 3% of what is computed", points=2, needs=("check_tokens",))
def check_padding(answer: Answer) -> None:
    """Real tokens against the rectangles that are computed."""
    cases = _cases()
    for (lengths, _, size), (steps, _) in zip(
        cases, answer.call(_batches, cases, seeds()), strict=True
    ):
        computed = sum(
            max(lengths[i] for i in batch) * len(batch) for step in steps for batch in step
        )
        waste = 1 - sum(lengths) / computed
        require(
            waste <= 0.03,
            f"{waste:.1%} of the tokens computed on {plural(size, 'rank')} are padding; at most 3% are allowed. "
            "Which sequences should share a batch?",
        )


@TOKENS.check("the ranks wait for the largest batch at most 1.5%; long ones at all times", points=3)
def check_balance(answer: Answer) -> None:
    """In each step all wait for the rank with most tokens; and lengths do not rise over the epoch."""
    cases = [case for case in _cases() if case[2] > 1]
    for (lengths, _, size), (steps, _) in zip(
        cases, answer.call(_batches, cases, seeds()), strict=True
    ):
        _require_whole_steps(steps, size, f"{len(lengths)} sequences on {plural(size, 'rank')}")
        longest = torch.tensor([float(max(lengths[i] for b in s for i in b)) for s in steps])
        trend = torch.corrcoef(torch.stack([longest, torch.arange(len(steps)).float()]))[0, 1]
        require(
            abs(trend) < 0.6,
            f"Lengths go one way over the epoch (correlation {trend:.2f}): "
            "first all short sequences, then all long ones. That is not the data's mixture any more. What can be "
            "shuffled without changing a batch?",
        )
        loads = torch.tensor(
            [[max(lengths[i] for i in batch) * len(batch) for batch in step] for step in steps]
        ).double()
        waiting = (1 - loads.mean(1) / loads.max(1).values).mean().item()
        require(
            waiting <= 0.015,
            f"On {plural(size, 'rank')} {waiting:.2%} of the time is spent waiting for the rank with most tokens; "
            "at most 1.5% is allowed. Which batches should stand in one step?",
        )
