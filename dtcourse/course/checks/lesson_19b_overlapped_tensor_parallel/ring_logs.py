"""Logs of a GEMM with reduce-scatter round a ring of ranks, drawn anew: what each rank multiplied, sent and received.

A log is a list over ranks of lists over steps. A step is {"whose", "begin", "end", "part", "sent", "came", "total"}:
the rank whose tokens were multiplied, when that began and ended, one number of the product; when the sum so far was
handed to the network, when the left-hand neighbour's came (None in the first step), and that number of the sum after
the step. Times are in milliseconds.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch

Log = list[list[dict[str, Any]]]
Diagnosis = tuple[str, int | None]
KINDS = ("healthy", "ends elsewhere", "posted late", "drops sums", "slow rank", "slow link")
WITH_RANK = KINDS[3:]


def run_of(kind: str, turn: int, draw: Random) -> tuple[tuple[Log], Diagnosis]:
    """A log with one mistake, or with none, and its diagnosis.

    turn: 0, 1, 2; links are shorter than products, about as long, or longer, which is no mistake
    """
    p = draw.randint(4, 6)
    which = draw.randrange(p) if kind in WITH_RANK else None
    product = draw.uniform(0.2, 2.0)
    link = product * (0.5, 0.9, 1.6)[turn]
    products = [
        product * (draw.uniform(1.8, 2.5) if (kind, r) == ("slow rank", which) else 1.0)
        for r in range(p)
    ]
    links = [
        link * (draw.uniform(1.8, 2.5) if (kind, r) == ("slow link", which) else 1.0)
        for r in range(p)
    ]
    first = draw.choice([0, *range(2, p)]) if kind == "ends elsewhere" else 1
    forgets = which if kind == "drops sums" else None
    return (_log(p, products, links, first, kind == "posted late", forgets, draw),), (kind, which)


def _log(
    p: int,
    products: list[float],
    links: list[float],
    first: int,
    late: bool,
    forgets: int | None,
    draw: Random,
) -> Log:
    ready = [draw.uniform(0, 0.3) * min(products) for _ in range(p)]
    log: Log = [[] for _ in range(p)]
    for step in range(p):
        begins = list(ready)
        ends = [t + one * draw.uniform(0.9, 1.1) for t, one in zip(begins, products, strict=True)]
        sent = [
            (end if late else begin) if step else None
            for begin, end in zip(begins, ends, strict=True)
        ]
        before = [log[r][-1]["total"] for r in range(p)] if step else []
        arrivals = [
            t + links[r] * draw.uniform(0.9, 1.1) if t is not None else None
            for r, t in enumerate(sent)
        ]
        for r in range(p):
            part, came = _rounded(draw.gauss(0, 1)), arrivals[r - 1]
            total = _rounded(part + before[r - 1]) if step and r != forgets else part
            log[r].append(
                {
                    "whose": (r - first - step) % p,
                    "begin": begins[r],
                    "end": ends[r],
                    "part": part,
                    "sent": sent[r],
                    "came": came,
                    "total": total,
                }
            )
            ready[r] = max(ends[r], came or 0.0)
    return log


def _rounded(x: float) -> float:
    """As single precision has it."""
    return torch.tensor(x, dtype=torch.float32).item()
