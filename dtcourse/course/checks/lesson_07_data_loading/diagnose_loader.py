"""Logs of what ranks read, drawn anew each time: what did the job's author do wrong, and where?"""

from __future__ import annotations

import random
from collections import Counter

from dtcourse.course.judging import Answer, Exercise, require_kind

DIAGNOSE = Exercise(
    "diagnose_loader",
    lesson="07",
    title="Which loader is broken, and how?",
    takes=("diagnose_loader",),
    target="40 of 40 jobs of 3 to 5 ranks, drawn anew each time",
)

EACH = 4  # jobs of a kind, and as many healthy ones beside them
EPOCHS = 3
PADDING = ("repeat", "drop", "exact")
HEALTHY = (
    "Which samples are read twice or not at all only because the number of ranks does not divide them? And what does a "
    "restart change, and what not?"
)
Diagnosis = tuple[str, int | None]
Row = tuple[int, int, int, int, int]  # start of the job, epoch, rank, sample, angle
Log = tuple[int, list[Row]]


def _order(total: int, epoch: int, seed: int) -> list[int]:
    return random.Random(f"{seed} {epoch}").sample(range(total), total)


def _padded(order: list[int], ranks: int, padding: str) -> list[int]:
    if padding == "repeat":
        return order + order[: -len(order) % ranks]
    return order[: len(order) // ranks * ranks] if padding == "drop" else order


def recorded(kind: str, turn: int) -> tuple[Log, Diagnosis]:
    """A job of three epochs with one mistake, or none; in every second one it is stopped, and goes on on other ranks.

    turn: 0 to EACH - 1; all three ways to end an order come, and a restart in turns 1 and 3
    """
    while True:
        log, right, plain = _drawn(kind, turn)
        if plain:
            return log, right


def _drawn(kind: str, turn: int) -> tuple[Log, Diagnosis, bool]:
    """One draw, and whether the log shows its mistake beyond doubt."""
    ranks, total, padding = random.randint(3, 5), random.randint(80, 120), PADDING[turn % 3]
    # Of four turns one has the first epoch that can be old, and one the last, so that neither is always right; nor is
    # the first rank.
    since = {0: 1, 2: EPOCHS - 1}.get(turn) or random.randint(1, EPOCHS - 1)
    odd = random.randrange(1 if turn == 3 else 0, ranks)
    # Of two ranks with unlike orders nobody could say whose is the wrong one.
    least = max(3, odd + 1) if kind == "seed" else 2
    later = random.choice([n for n in range(least, 7) if n != ranks])
    stop = random.randrange(EPOCHS) if turn % 2 or kind == "skip" else None
    if kind == "set_epoch" and turn == 1:
        # The old order comes back on another number of ranks, once at least.
        stop = since - 1
    # Samples of each rank before the restart; at least a quarter of the epoch is left, also after a skip on more ranks.
    read = 4 * random.randint(2, 3 * total // (16 * max(ranks, later)))
    seed, own_seed, rows = random.randrange(10**6), random.randrange(10**6), []
    for epoch in range(EPOCHS):
        order = _order(total, min(epoch, since - 1) if kind == "set_epoch" else epoch, seed)
        used = read * (later if kind == "skip" else ranks)
        if epoch == stop:
            parts = [(0, ranks, 0, read), (1, later, used, None)]
        elif stop is None or epoch < stop:
            parts = [(0, ranks, 0, None)]
        else:
            parts = [(1, later, 0, None)]
        for start, size, begin, most in parts:
            for rank in range(size):
                mine = _padded(order[begin:], size, padding)[rank::size]
                if kind == "seed" and rank == odd:
                    mine = _padded(_order(total, epoch, own_seed)[begin:], size, padding)[
                        rank::size
                    ]
                elif kind == "no sampler":
                    mine = _order(total, epoch, seed + 1 + rank)[read if begin else 0 :]
                chance = random.Random(f"{seed} angles {epoch}" if kind == "worker seed" else None)
                rows += [
                    (start, epoch, rank, sample, chance.randint(-15, 15)) for sample in mine[:most]
                ]
    where = {"seed": odd, "set_epoch": since, "skip": stop}.get(kind)
    return (total, rows), (kind, where), _is_plain(kind, rows, total, odd, stop)


def _is_plain(kind: str, rows: list[Row], total: int, odd: int, stop: int | None) -> bool:
    """That a skip reads or leaves out eight samples at least, and that the odd rank shares most by four at least."""
    if kind == "skip":
        times = Counter(sample for _, epoch, _, sample, _ in rows if epoch == stop)
        return abs(sum(times.values()) - total) >= 10
    if kind == "seed":
        for epoch in range(EPOCHS):
            times = Counter(sample for _, e, _, sample, _ in rows if e == epoch)
            shared: Counter[int] = Counter()
            for _, e, rank, sample, _ in rows:
                shared[rank] += e == epoch and times[sample] > 1
            others = [n for rank, n in shared.items() if rank != odd]
            if epoch != stop and shared[odd] < max(others) + 4:
                return False
    return True


def _described(total: int, rows: list[Row]) -> str:
    starts = sorted({row[0] for row in rows})
    ranks = [len({row[2] for row in rows if row[0] == start}) for start in starts]
    return f"A job of {total} samples on {' ranks, then on '.join(map(str, ranks))} ranks"


def _require(answer: Answer, kind: str, hint: str) -> None:
    require_kind(
        answer,
        kind,
        hint,
        drawn=recorded,
        each=EACH,
        describe=_described,
        healthy=HEALTHY,
        example=("seed", 2),
    )


@DIAGNOSE.check("set_epoch that is called no more", points=2)
def check_epoch(answer: Answer) -> None:
    """From some epoch on."""
    _require(
        answer, "set_epoch", "What does the sampler know of the epoch, and in which epoch does one see it first?"
    )  # fmt: skip


@DIAGNOSE.check("no sampler", points=1)
def check_everything(answer: Answer) -> None:
    """Every rank reads all."""
    _require(answer, "no sampler", "How much of the data does one rank read in an epoch?")


@DIAGNOSE.check("a rank with another seed", points=3)
def check_seed(answer: Answer) -> None:
    """Its part overlaps with the others'."""
    _require(
        answer, "seed", "Whose part of the data overlaps with everybody's, and whose overlaps only with that one's?"
    )  # fmt: skip


@DIAGNOSE.check("workers of one seed on all ranks", points=2)
def check_angles(answer: Answer) -> None:
    """Other samples, turned by the same angles."""
    _require(
        answer,
        "worker seed",
        "Each rank reads samples of its own. What do all ranks do to their first one, and to their second?",
    )


@DIAGNOSE.check("a restart that skips as many batches per rank", points=2)
def check_skip(answer: Answer) -> None:
    """On more ranks it leaves samples out, on fewer it reads some twice."""
    _require(
        answer,
        "skip",
        "How many samples had all ranks together used before the restart, and how many does the job take for used "
        "after it?",
    )
