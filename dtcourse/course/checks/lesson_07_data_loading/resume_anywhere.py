"""Go on in the middle of shards, with another number of ranks."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

from dtcourse.course.judging import Answer, Exercise, require
from dtcourse.course.judging.samples import counted
from dtcourse.plural import plural

RESUME = Exercise(
    "resume_anywhere",
    lesson="07",
    title="Go on in the middle of shards",
    takes=("ResumableShards",),
    target="40 shards over 5 interruptions and 1 to 8 ranks: 0 samples lost, 0 twice; each shard opened at most once "
    "between two interruptions; a state of at most 250 bytes",
    forbidden=(
        "torch.utils.data",
        "dtcourse.data",
    ),
)

MOST_BYTES = 250
Segment = tuple[int, int, int]  # ranks, samples per batch, steps


def _segments(
    resumable: Any, sizes: list[int], plan: list[Segment], who: list[int]
) -> dict[str, Any]:
    """Ranks in lock-step. After each segment one rank's state goes through JSON to all ranks of the next one."""
    read, state, lengths, states = [], None, [0], []
    for (size, batch, steps), keeper in zip(plan, who, strict=True):
        ranks = [resumable(list(sizes), size, rank, batch) for rank in range(size)]
        if state is not None:
            for one in ranks:
                one.load(json.loads(state))
        iterators = [iter(one) for one in ranks]
        segment = []
        for _ in range(steps):
            taken = [[(int(s), int(p)) for s, p in next(one, [])] for one in iterators]
            segment.append(taken)
            if not any(taken) and len(segment) > 1 and not any(segment[-2]):
                break
        read.append(segment)
        states.append([json.dumps(one.state()) for one in ranks])
        state = states[-1][keeper % size]
        lengths.append(len(state))
    return {"read": read, "bytes": max(lengths)}


def _opened(segment: list[list[list[tuple[int, int]]]], words: str, hint: str) -> None:
    """That each rank reads a shard from front to back, and that nobody opens one that was open before."""
    owner: dict[int, int] = {}
    for rank in range(len(segment[0]) if segment else 0):
        mine = [sample for step in segment for sample in step[rank]]
        last = -1
        for i, (shard, place) in enumerate(mine):
            if shard != last:
                require(
                    shard not in owner,
                    f"{words}: shard {shard} is opened again by rank {rank}; rank {owner.get(shard)} had it open "
                    f"before, and nothing was interrupted between. {hint}",
                )
                owner[shard] = rank
            else:
                require(
                    place == mine[i - 1][1] + 1,
                    f"{words}: rank {rank} reads sample {place} of shard {shard} after sample {mine[i - 1][1]}: a "
                    "shard is read from front to back.",
                )
            last = shard


def _busy(
    segment: list[list[list[tuple[int, int]]]], fresh: set[int], batch: int, words: str
) -> None:
    """That every batch is full as long as a shard is left that nobody has opened. fresh: those shards at first."""
    left = set(fresh)
    for number, step in enumerate(segment):
        left -= {shard for part in step for shard, _ in part}
        if not left:
            return
        short = [rank for rank, part in enumerate(step) if len(part) < batch]
        require(
            not short,
            f"{words}: in step {number} rank {short[:1]} has no full batch, though {plural(len(left), 'shard')} are "
            "left that nobody has opened. Who should get the next shard, where shards are not equally large?",
        )


def _resume(answer: Answer, sizes: list[int], plan: list[Segment], why: str) -> list[Any]:
    who = [random.randrange(8) for _ in plan]
    result = answer.call(_segments, sizes, plan, who)
    words = f"{len(sizes)} shards, " + " then ".join(
        f"{plural(size, 'rank')} x {batch}" for size, batch, _ in plan
    )
    known = {(s, p): i for i, (s, p) in enumerate((s, p) for s, n in enumerate(sizes) for p in range(n))}  # fmt: skip
    read = []
    for segment, (_, batch, _) in zip(result["read"], plan, strict=True):
        for part in (part for step in segment for part in step):
            require(
                len(part) <= batch,
                f"A batch of {len(part)} samples came, where at most {batch} were asked for.",
            )
            for sample in part:
                require(sample in known, f"{words}: there is no sample {sample!r}.")
                read.append(known[sample])
    counted(
        read, len(known), words,
        f"{why} Does the state say how far each shard is that is open, on every rank, at this moment?",
        f"{why} What becomes of shards that were begun, and of those that nobody has opened? And does the state "
        "count what has been handed out, or what has been prepared?",
    )  # fmt: skip
    opened: set[int] = set()
    for segment, (_, batch, _) in zip(result["read"], plan, strict=True):
        _opened(segment, words, "Who reads a shard, one rank or all of them?")
        _busy(segment, set(range(len(sizes))) - opened, batch, words)
        opened |= {shard for step in segment for part in step for shard, _ in part}
    require(
        result["bytes"] <= MOST_BYTES,
        f"{words}: the state is {result['bytes']:,} bytes of JSON; at most {MOST_BYTES} are allowed. Of which shards "
        "is it not clear from one number whether they have been read?",
    )
    return result["read"]


def _sizes(number: int, least: int = 5, most: int = 40) -> list[int]:
    return [random.randint(least, most) for _ in range(number)]


@RESUME.check("one epoch without an interruption, in shards", points=2, needs=("check_same",))
def check_whole(answer: Answer) -> None:
    """Shards shuffled, each opened once, all ranks busy while there is one left."""
    for number, size, batch in ((12, 1, 7), (13, 3, 8), (5, 8, 2)):
        read = _resume(answer, _sizes(number), [(size, batch, 900)], "No state was loaded here.")
        if number == 12:
            order = list(dict.fromkeys(shard for step in read[0] for shard, _ in step[0]))
            rising = sum(a < b for a, b in pairwise(order))
            require(rising < 10, "The shards come in their own order. Are they shuffled?")


@RESUME.check("interrupted, and resumed on as many ranks", points=2)
def check_same(answer: Answer) -> None:
    """The state is taken between two batches."""
    for steps in (0, 1, 5):
        _resume(
            answer, _sizes(14), [(4, 6, steps), (4, 6, 900)], f"The state was saved after {steps} batches."
        )  # fmt: skip


@RESUME.check("40 shards, five interruptions, 1 to 8 ranks, any rank's state", points=3)
def check_any(answer: Answer) -> None:
    """Numbers of ranks and batch sizes change at each interruption."""
    for _ in range(3):
        plan = [
            (random.randint(1, 8), random.randint(1, 9), random.randint(0, 6)) for _ in range(5)
        ]
        plan.insert(random.randrange(5), (8, 3, 4))
        _resume(
            answer, _sizes(40), [*plan[:5], (3, 7, 900)], "The number of ranks changes at each interruption."
        )  # fmt: skip


@RESUME.check("one rank has long run out where another still reads", points=2)
def check_uneven(answer: Answer) -> None:
    """The last shard is much larger than the others; the state is that of any rank."""
    for steps in (2, 4, 7):
        for _ in range(3):
            _resume(
                answer,
                [3, 2, 4, 60, 3],
                [(4, 3, steps), (2, 2, steps), (3, 4, 900)],
                "Three ranks have nothing left while the fourth reads the large shard.",
            )
