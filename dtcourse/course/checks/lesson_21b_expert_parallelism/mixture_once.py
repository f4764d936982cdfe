"""A mixture of experts whose tokens travel once to each rank that they need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dtcourse.course.judging import Answer, Exercise, require, require_close
from dtcourse.plural import plural

ONCE = Exercise(
    "mixture_once",
    lesson="21b",
    title="Each token travels once to a rank",
    takes=("mixture_once",),
    target="equal to one process to 1e-9 at 2, 3 and 4 ranks; D + 2k numbers there, D back, for each token and rank",
    forbidden=("dtcourse.expert_parallel",),
)

EACH, DIM, CHOICES = 3, 16, 4
LENGTHS = ((2, (7, 5)), (3, (6, 0, 9)), (4, (5, 5, 3, 8)))  # ranks, and tokens of each
Part = tuple[Tensor, Tensor, Tensor]


def _compute(e: int, rows: Tensor) -> Tensor:
    """An expert that no other one can be taken for."""
    return torch.tanh(rows + e).roll(e, -1)


def _mixtures(mixture_once: Any, batches: list[list[Part]]) -> Any:
    """In a rank, for each batch: its output, and how many rows each expert has computed here."""
    import torch.distributed as dist

    rank, found = dist.get_rank(), []
    for parts in batches:
        computed = dict.fromkeys(range(EACH * dist.get_world_size()), 0)

        def expert(e: int, rows: Tensor, computed: dict[int, int] = computed) -> Tensor:
            if e // EACH != rank:
                raise ValueError(f"rank {rank} holds no expert {e}")
            computed[int(e)] += len(rows)
            return _compute(int(e), rows)

        out = mixture_once(*(t.clone() for t in parts[rank]), expert, EACH)
        found.append((out, list(computed.values())))
    return found


def _parts(ranks: int, lengths: tuple[int, ...], favourite: bool) -> list[Part]:
    """Each rank's tokens. favourite: all want the first experts, and nobody the last rank's."""
    make = torch.Generator().manual_seed(ranks)
    parts = []
    for length in lengths:
        x = torch.randn(length, DIM, generator=make, dtype=torch.double)
        logits = torch.randn(length, EACH * ranks, generator=make, dtype=torch.double)
        if favourite:
            logits[:, : CHOICES + 1] += 20
            logits[:, -EACH + 1 :] -= 90
        top = logits.topk(CHOICES)
        parts.append((x, top.indices, (top.values / 3).softmax(-1)))
    return parts


def _runs(answer: Answer) -> Iterator[tuple[int, list[list[Part]], Any]]:
    """(ranks, each batch's parts, run)."""
    for ranks, lengths in LENGTHS:
        batches = [_parts(ranks, lengths, favourite) for favourite in (False, True)]
        yield ranks, batches, answer.run(_mixtures, ranks, batches, backend="ring", record=True)


def _alone(part: Part, weighted: bool = True, choices: int = CHOICES) -> Tensor:
    """One process."""
    x, experts, weights = part
    y = torch.zeros_like(x)
    for n in range(len(x)):
        for e, w in zip(experts[n, :choices].tolist(), weights[n].tolist(), strict=False):
            y[n] += (w if weighted else 1.0) * _compute(e, x[n])
    return y


def _mistakes(part: Part) -> dict[str, Tensor]:
    """What some mistakes compute, by the question that leads out of each."""
    x, experts, weights = part
    ranks = experts // EACH
    first = torch.zeros_like(x)
    for n in range(len(x)):  # one expert of each rank only
        for r in ranks[n].unique():
            i = int((ranks[n] == r).nonzero()[0])
            first[n] += weights[n, i] * _compute(int(experts[n, i]), x[n])
    return {
        "The experts' outputs are added as they are: where does the gate's weight come in?": _alone(
            part, weighted=False
        ),
        "That is each token's first choice only: where are the others?": _alone(part, choices=1),
        "A token that needs a rank may have chosen several of its experts: which of them does it meet there?": first,
    }


@ONCE.check("the output is one process's", points=4)
def check_output(answer: Answer) -> None:
    """At 2, 3 and 4 ranks, in double precision, whatever is chosen."""
    for ranks, batches, run in _runs(answer):
        for i, parts in enumerate(batches):
            for rank, part in enumerate(parts):
                out, right = run[rank][i][0], _alone(part)
                hint = "In what order do the rows come back, and whose are they?"
                if isinstance(out, Tensor) and out.shape == right.shape and len(right):
                    for said, wrong in _mistakes(part).items():
                        if torch.allclose(out.double(), wrong, atol=1e-6):
                            hint = said
                where = (
                    f"With {plural(ranks, 'rank')} of {[len(x) for x, _, _ in parts]} tokens, "
                    f"the output of rank {rank}"
                )
                require_close(out, right, where, 1e-9, hint)


@ONCE.check("each expert computes its tokens", points=2, needs=("check_output",))
def check_rows(answer: Answer) -> None:
    """Those that chose it, and no others."""
    for ranks, batches, run in _runs(answer):
        for i, parts in enumerate(batches):
            chosen = torch.cat([experts.flatten() for _, experts, _ in parts])
            counts = torch.bincount(chosen, minlength=EACH * ranks).tolist()
            for e, count in enumerate(counts):
                found = run[e // EACH][i][1][e]
                require(
                    found == count,
                    f"With {plural(ranks, 'rank')}, expert {e} has computed {plural(found, 'row')}; "
                    f"{plural(count, 'token')} chose it. "
                    "Which of the rows that arrived are for which expert?",
                )


@ONCE.check("a token travels once to a rank", points=3, needs=("check_output",))
def check_bytes(answer: Answer) -> None:
    """Counted, there and back, in both batches together."""
    for ranks, batches, run in _runs(answer):
        needed = [
            [
                torch.zeros(len(x), ranks, dtype=torch.bool).scatter(1, experts // EACH, True)
                for x, experts, _ in parts
            ]
            for parts in batches
        ]
        for rank in range(ranks):
            others = [r for r in range(ranks) if r != rank]
            out = sum(int(parts[rank][:, r].sum()) for parts in needed for r in others)
            back = sum(int(parts[r][:, rank].sum()) for parts in needed for r in others)
            most = 8 * ((DIM + 2 * CHOICES) * out + DIM * back + ranks * len(batches))
            sent = run.traffic.bytes_sent(rank=rank)
            require(
                sent <= most,
                f"With {plural(ranks, 'rank')}, rank {rank} sends {sent:,} bytes. Its tokens need other ranks {out} "
                f"times, and {plural(back, 'row')} go back from it: {most:,} are enough. Does a row travel twice to "
                "a rank, or come back twice, and who gets rows that it does not need?",
            )
