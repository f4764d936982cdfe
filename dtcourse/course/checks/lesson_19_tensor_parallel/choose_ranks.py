"""How many ranks for tensor parallelism: what fits, is fast enough, and costs the fewest GPU seconds."""

from __future__ import annotations

from typing import Any, NamedTuple

from dtcourse.course.judging import Answer, Exercise, call_each, number, require

CHOOSE = Exercise(
    "choose_ranks",
    lesson="19",
    title="Choose the number of ranks",
    takes=("choose_ranks",),
    target="fits, meets the limit, and costs at most 1.01 times the fewest GPU seconds, on 9 clusters",
)


class Case(NamedTuple):
    """What is asked, in the order of the exercise's arguments; see there."""

    layers: int
    width: int
    heads: int
    tokens: int
    flops: float
    node: int
    inside: float
    between: float
    latency: float
    memory: float
    limit: float


# between: a rank's share of its node's cards
H100: dict[str, Any] = {"flops": 4e14, "node": 8, "inside": 450e9, "between": 50e9, "latency": 2e-6}
# Eight GPUs share four cards of 100 Gbit/s.
A100: dict[str, Any] = {
    "flops": 1.25e14,
    "node": 8,
    "inside": 300e9,
    "between": 6.25e9,
    "latency": 2e-6,
}
SMALL = H100 | {"latency": 1e-5}
INSIDE = (
    Case(32, 4096, 32, 4096, memory=80e9, limit=10.0, **H100),
    Case(32, 4096, 32, 4096, memory=80e9, limit=0.11, **H100),  # 4 ranks, since they overlap
    Case(32, 4096, 30, 8192, memory=80e9, limit=0.2, **H100),
)
ACROSS = (
    Case(80, 8192, 64, 4096, memory=80e9, limit=0.3, **H100),  # by all cards of a node at once
    Case(80, 8192, 64, 4096, memory=141e9, limit=10.0, **H100),  # the states alone fit on 8
    Case(24, 2048, 16, 512, memory=80e9, limit=0.008, **SMALL),
)
NOTHING_FITS = (
    Case(80, 8192, 12, 4096, memory=80e9, limit=10.0, **H100),  # too few heads
    Case(80, 8192, 64, 4096, memory=80e9, limit=0.9, **A100),  # links between nodes
    Case(24, 2048, 16, 512, memory=80e9, limit=0.006, **SMALL),  # latency
)


def step(case: Case, p: int) -> float:
    """Seconds, by the formula of the exercise."""
    product = 2 * case.width**2 * case.tokens / (p * case.flops)  # of width x width, on p ranks
    bandwidth = case.inside
    if p > case.node:  # a ring through each card
        bandwidth = min(case.inside, case.node * case.between)
    nbytes = 2 * case.tokens * case.width
    reduce = 2 * (p - 1) * case.latency + 2 * (p - 1) / p * nbytes / bandwidth
    hidden = min(reduce, 3 * product) + min(reduce, 4 * product)
    return case.layers * (3 * 12 * product + 4 * reduce - hidden)


def held(case: Case, p: int) -> float:
    """Bytes on each rank, by the formula of the exercise."""
    states = 16 * 12 * case.layers * case.width**2 / p
    return states + case.layers * case.tokens * case.width * (10 + 24 / p)


def costs(case: Case) -> dict[int, float]:
    """GPU seconds of each number of ranks that fits and is fast enough."""
    possible = [p for p in range(1, case.heads + 1) if case.heads % p == 0]
    return {
        p: p * step(case, p)
        for p in possible
        if held(case, p) <= case.memory and step(case, p) <= case.limit
    }


def _require(answer: Answer, cases: tuple[Case, ...], hint: str) -> None:
    for case, got in zip(cases, map(number, call_each(answer, cases)), strict=True):
        where = (
            f"{case.layers} layers of width {case.width}, {case.heads} heads, {case.tokens} tokens, "
            f"{case.memory / 1e9:g} GB, limit {case.limit:g} s"
        )
        found = costs(case)
        if got is None:
            require(
                not found,
                f"{where}: you find no number of ranks, and {next(iter(found), 0)} do. {hint}",
            )
            continue
        require(
            isinstance(got, int) and got > 0,
            f"{where}: the answer is a number of ranks, or None; got {got!r}.",
        )
        require(
            case.heads % got == 0, f"{where}: {got} ranks cannot share {case.heads} heads equally."
        )
        require(
            held(case, got) <= case.memory,
            f"{where}: on {got} ranks each holds {held(case, got) / 1e9:.1f} GB. Does your memory count the "
            "activations, and the part of them that every rank holds whole?",
        )
        require(
            step(case, got) <= case.limit,
            f"{where}: on {got} ranks a step takes {step(case, got):.4g} s, which is above the limit. {hint}",
        )
        best = min(found.values())
        require(
            found[got] <= 1.01 * best,
            f"{where}: {got} ranks cost {found[got]:.4g} GPU seconds per step, and {best:.4g} are enough. {hint}",
        )


@CHOOSE.check("inside a node", points=3, needs=("check_across", "check_nothing"))
def check_inside(answer: Answer) -> None:
    """With much time, and with little."""
    _require(
        answer,
        INSIDE,
        "More ranks make a step shorter and a GPU second less useful. What hides behind a weight gradient?",
    )


@CHOOSE.check("where a node is not enough, or too much", points=3, needs=("check_inside",))
def check_across(answer: Answer) -> None:
    """Links between nodes, and latency."""
    _require(
        answer,
        ACROSS,
        "How many cards does a node send with at once? What hides behind a weight gradient?",
    )


@CHOOSE.check("where nothing does", points=2, needs=("check_inside",))
def check_nothing(answer: Answer) -> None:
    """Too few heads for the memory, slow links, too much latency."""
    _require(
        answer,
        NOTHING_FITS,
        "Which links do rings over two nodes use, and what do their 2 (p - 1) steps cost?",
    )
