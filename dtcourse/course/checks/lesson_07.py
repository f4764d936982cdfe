"""The checks of lesson 07: an exact partition, a position for any number of ranks, batches by tokens, a cache for epochs."""

from __future__ import annotations

import json
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import torch

from dtcourse.course.checks import Answer, Exercise, require

# --- 1. an exact partition -------------------------------------------------------------------------------------------

PARTITION = Exercise(
    "exact_partition",
    lesson="07",
    title="Each sample to one rank",
    takes=("part_of",),
    target="0 samples lost and 0 read twice for 1 to 64 ranks; numbers of samples that differ by at most 1",
)


def _parts(part_of: Any, cases: list[tuple[int, int, int]], seeds: list[int]) -> list[list[Any]]:
    """Each rank's part, each rank with a random state of its own."""
    found = []
    for total, size, epoch in cases:
        parts = []
        for rank in range(size):
            torch.manual_seed(seeds[rank % len(seeds)])
            random.seed(seeds[rank % len(seeds)])
            parts.append([int(i) for i in part_of(total, size, rank, epoch)])
        found.append(parts)
    return found


def _seeds() -> list[int]:
    return [random.randrange(2**31) for _ in range(5)]


def _counted(read: list[int], total: int, words: str, twice: str, lost: str) -> None:
    """Refuses samples that are read twice, not at all, or that there are not."""
    times = Counter(read)
    strange = sorted(set(times) - set(range(total)))
    require(
        not strange,
        f"{words}: index {strange[:1]} was read, and there are samples 0 to {total - 1}.",
    )
    again = [i for i, n in times.items() if n > 1]
    require(
        not again,
        f"{words}: {len(again)} of {total} samples are read more than once, sample {min(again, default=0)} "
        f"{times[min(again, default=0)]} times. {twice}",
    )
    never = [i for i in range(total) if i not in times]
    require(
        not never,
        f"{words}: {len(never)} of {total} samples are never read, sample {min(never, default=0)} among them. {lost}",
    )


@PARTITION.check("each sample once, on ranks that draw nothing alike", points=3)
def check_partition(answer: Answer) -> None:
    """Also where the ranks do not divide the samples, and where there are fewer samples than ranks."""
    cases = [(random.randrange(300, 400), size, random.randrange(5)) for size in (1, 2, 3, 7, 64)]
    cases += [(3, 5, 0), (1, 2, 1)]
    for (total, size, epoch), parts in zip(
        cases, answer.call(_parts, cases, _seeds()), strict=True
    ):
        _counted(
            [i for part in parts for i in part],
            total,
            f"{total} samples on {size} ranks in epoch {epoch}",
            "Do all ranks draw the same order, also where their own random states differ? Is anything padded?",
            "Who reads the rest that the ranks do not divide? Do all ranks draw the same order?",
        )
        lengths = [len(part) for part in parts]
        require(
            max(lengths) - min(lengths) <= 1,
            f"{total} samples on {size} ranks: one rank has {max(lengths)} and another {min(lengths)}. "
            "How would you deal out cards?",
        )


@PARTITION.check("another order in another epoch, the same one when asked again", points=2)
def check_epochs(answer: Answer) -> None:
    """At least nine of ten samples change places."""
    cases = [(400, 4, 0), (400, 4, 1), (400, 4, 7), (400, 4, 0)]
    first, second, eighth, again = answer.call(_parts, cases, _seeds())
    require(
        first == again,
        "Epoch 0, asked for twice, comes in two orders. What may the order depend on, so that it can be made again?",
    )
    for name, other in (("1", second), ("7", eighth)):
        same = sum(
            a == b for x, y in zip(first, other, strict=True) for a, b in zip(x, y, strict=False)
        )
        require(
            same < 40,
            f"In epoch {name}, {same} of 400 samples stand where they stood in epoch 0. Where does the epoch come in?",
        )
    in_order = sum(a < b for part in first for a, b in pairwise(part))
    require(in_order < 300, "The samples come in their own order. Where are they shuffled?")


@PARTITION.check("after k samples a rank, the same have been read on any number of ranks", points=2)
def check_prefix(answer: Answer) -> None:
    """What resuming on another number of ranks stands on."""
    sizes = (1, 2, 3, 4, 6)
    runs = answer.call(_parts, [(240, size, 2) for size in sizes], _seeds())
    alone = runs[0][0]
    for size, parts in zip(sizes, runs, strict=True):
        k = 60 // size
        read = {i for part in parts for i in part[:k]}
        require(
            read == set(alone[:60]),
            f"When each of {size} ranks has read {k} samples, {len(read - set(alone[:60]))} of those 60 are not among the "
            "first 60 that one rank alone would read. Does a rank take a block of the order, or every p-th place of it? "
            "And is it the same order for every p?",
        )


# --- 2. a position for any number of ranks ---------------------------------------------------------------------------

RESUME = Exercise(
    "resume_anywhere",
    lesson="07",
    title="Go on with another number of ranks",
    takes=("Resumable",),
    target="1,000 samples over 5 interruptions and 1 to 8 ranks: 0 lost, 0 twice; a state of at most 200 bytes",
)


def _segments(
    resumable: Any, total: int, plan: list[tuple[int, int, int]], who: list[int]
) -> dict[str, Any]:
    """Ranks in lock-step. After each segment one rank's state goes through JSON to all ranks of the next one."""
    read, state, sizes, lengths = [], None, [], []
    for (size, batch, steps), keeper in zip(plan, who, strict=True):
        ranks = [resumable(total, size, rank, batch) for rank in range(size)]
        if state is not None:
            for one in ranks:
                one.load(json.loads(state))
        iterators = [iter(one) for one in ranks]
        segment = []
        for _ in range(steps):
            for iterator in iterators:
                taken = [int(i) for i in next(iterator, [])]
                lengths.append((len(taken), batch))
                segment += taken
        read.append(segment)
        state = json.dumps(ranks[keeper % size].state())
        sizes.append(len(state))
    return {"read": read, "bytes": max(sizes), "lengths": lengths}


def _resume(answer: Answer, total: int, plan: list[tuple[int, int, int]], why: str) -> Any:
    who = [random.randrange(8) for _ in plan]
    result = answer.call(_segments, total, plan, who)
    words = " then ".join(f"{size} ranks x {batch}" for size, batch, _ in plan)
    for taken, batch in result["lengths"]:
        require(
            taken <= batch,
            f"A batch of {taken} indices came, where at most {batch} were asked for.",
        )
    _counted(
        [i for segment in result["read"] for i in segment],
        total,
        f"{total} samples, {words}",
        f"{why} Is what is saved a number of places of all ranks together, or of this rank alone?",
        f"{why} Does the position count what has been handed out, or what has been prepared?",
    )
    return result


@RESUME.check("one epoch without an interruption", points=1)
def check_whole(answer: Answer) -> None:
    """In a shuffled order, also where nothing divides anything."""
    for total, size, batch in ((100, 1, 7), (101, 3, 8), (5, 8, 2)):
        result = _resume(answer, total, [(size, batch, 200)], "No state was loaded here.")
        if total > 90:
            order = result["read"][0]
            rising = sum(a < b for a, b in pairwise(order))
            require(rising < 0.8 * total, "The samples come in their own order. Are they shuffled?")


@RESUME.check("interrupted, and resumed on as many ranks", points=2)
def check_same(answer: Answer) -> None:
    """The state is taken between two batches."""
    for steps in (0, 1, 5):
        _resume(
            answer, 200, [(4, 6, steps), (4, 6, 200)], f"The state was saved after {steps} batches."
        )


@RESUME.check("1,000 samples, five interruptions, 1 to 8 ranks, any rank's state", points=4)
def check_any(answer: Answer) -> None:
    """Numbers of ranks and batch sizes change at each interruption."""
    for _ in range(3):
        plan = [
            (random.randint(1, 8), random.randint(1, 9), random.randint(0, 5)) for _ in range(5)
        ]
        result = _resume(
            answer, 1000, [*plan, (3, 7, 1000)], "The number of ranks changes at each interruption."
        )
        require(
            result["bytes"] <= 200,
            f"The state is {result['bytes']:,} bytes of JSON for 1,000 samples; at most 200 are allowed. "
            "If all ranks agree on one order, what is the least that says how far they are?",
        )


@RESUME.check("every rank saves the same, also where one runs out before the others", points=2)
def check_uneven(answer: Answer) -> None:
    """Ends that are not full batches."""
    for total, plan in (
        (21, [(4, 3, 1), (4, 3, 1), (2, 2, 50)]),
        (7, [(2, 2, 2), (1, 1, 50)]),
        (10, [(4, 1, 3), (3, 2, 50)]),
    ):
        for _ in range(4):
            _resume(
                answer, total, plan,
                "The last batches are smaller than the others, or there are none left on some ranks.",
            )  # fmt: skip


# --- 3. batches by tokens --------------------------------------------------------------------------------------------

TOKENS = Exercise(
    "batches_by_tokens",
    lesson="07",
    title="As many tokens, not as many sequences",
    takes=("token_batches",),
    target="0 sequences lost or twice; never above the budget; padding at most 3%; waiting at most 1.5% on 4 ranks",
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


@TOKENS.check("each sequence once, one batch a rank and step, never above the budget", points=3)
def check_tokens(answer: Answer) -> None:
    """The same on every rank, whatever its random state."""
    cases = _cases(
        (1, 3, 4, 7, 11)
    )  # a last step that is full by chance in all of them is most unlikely
    for (lengths, budget, size), (steps, others) in zip(
        cases, answer.call(_batches, cases, _seeds()), strict=True
    ):
        words = f"{len(lengths)} sequences on {size} ranks"
        require(
            steps == others,
            f"{words}: two ranks with other random states make other batches. What must the shuffling depend on?",
        )
        _require_whole_steps(steps, size, words)
        _counted(
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


@TOKENS.check("padding at most 3% of what is computed", points=2)
def check_padding(answer: Answer) -> None:
    """Real tokens against the rectangles that are computed."""
    cases = _cases()
    for (lengths, _, size), (steps, _) in zip(
        cases, answer.call(_batches, cases, _seeds()), strict=True
    ):
        computed = sum(
            max(lengths[i] for i in batch) * len(batch) for step in steps for batch in step
        )
        waste = 1 - sum(lengths) / computed
        require(
            waste <= 0.03,
            f"{waste:.1%} of the tokens computed on {size} ranks are padding; at most 3% are allowed. "
            "Which sequences should share a batch?",
        )


@TOKENS.check("the ranks wait for the largest batch at most 1.5%; long ones at all times", points=3)
def check_balance(answer: Answer) -> None:
    """In each step all wait for the rank with most tokens; and lengths do not rise over the epoch."""
    cases = [case for case in _cases() if case[2] > 1]
    for (lengths, _, size), (steps, _) in zip(
        cases, answer.call(_batches, cases, _seeds()), strict=True
    ):
        _require_whole_steps(steps, size, f"{len(lengths)} sequences on {size} ranks")
        longest = torch.tensor([float(max(lengths[i] for b in s for i in b)) for s in steps])
        trend = torch.corrcoef(torch.stack([longest, torch.arange(len(steps)).float()]))[0, 1]
        require(
            abs(trend) < 0.6,
            f"Lengths go one way over the epoch (correlation {trend:.2f}): first all short sequences, then all long ones. "
            "That is not the data's mixture any more. What can be shuffled without changing a batch?",
        )
        loads = torch.tensor(
            [[max(lengths[i] for i in batch) * len(batch) for batch in step] for step in steps]
        ).double()
        waiting = (1 - loads.mean(1) / loads.max(1).values).mean().item()
        require(
            waiting <= 0.015,
            f"On {size} ranks {waiting:.2%} of the time is spent waiting for the rank with most tokens; at most 1.5% is "
            "allowed. Which batches should stand in one step?",
        )


# --- 4. a cache for shuffled epochs ----------------------------------------------------------------------------------

CACHE = Exercise(
    "epoch_cache",
    lesson="07",
    title="A cache for shuffled epochs",
    takes=("EpochCache",),
    target="from epoch 2 on at least 95% of the capacity in hits, and never more than the capacity can give",
)


def _epochs(
    epoch_cache: Any, capacity: int, orders: list[list[int]], values: list[float]
) -> dict[str, Any]:
    """Hits in each epoch, and how many of what came back was not the sample that was asked for."""
    cache = epoch_cache(capacity)
    hits, wrong = [], 0
    for order in orders:
        made: list[int] = []

        def make(index: int, made: list[int] = made) -> torch.Tensor:
            made.append(index)
            return torch.tensor(values[index])

        for index in order:
            wrong += cache.get(index, make).item() != torch.tensor(values[index]).item()
        hits.append(len(order) - len(made))
    return {"hits": hits, "wrong": int(wrong)}


def _read(answer: Answer, n: int, capacity: int, epochs: int = 4) -> list[int]:
    orders = [random.sample(range(n), n) for _ in range(epochs)]
    values = [random.random() for _ in range(n)]
    result = answer.call(_epochs, capacity, orders, values)
    require(
        result["wrong"] == 0,
        f"{result['wrong']} of {n * epochs} times another sample came back than the one that was asked for. "
        "Under which key is a sample kept?",
    )
    hits = result["hits"]
    require(
        max(hits) <= capacity,
        f"{max(hits)} hits in one epoch of {n} samples: a cache of {capacity} samples cannot have more than {capacity}, since each "
        "sample comes once an epoch. How many do you keep?",
    )
    return hits


@CACHE.check("the right samples, and never more of them than fit", points=2)
def check_capacity(answer: Answer) -> None:
    """Also for a cache of nothing."""
    for n, capacity in ((200, 20), (50, 0), (30, 30)):
        _read(answer, n, capacity)


@CACHE.check("at least 95% of the capacity in hits, in each epoch after the first", points=3)
def check_hits(answer: Answer) -> None:
    """A quarter, half and nine tenths of the data fit."""
    for capacity in (100, 200, 360):
        hits = _read(answer, 400, capacity)
        require(
            min(hits[1:]) >= 0.95 * capacity,
            f"{capacity} of 400 samples fit, and one epoch had {min(hits[1:])} hits; {round(0.95 * capacity)} are asked for. When you throw "
            "out a sample for a new one, which of the two comes sooner in the next epoch?",
        )
