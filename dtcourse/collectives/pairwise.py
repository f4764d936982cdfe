"""Pairwise exchange: in step s every rank sends to the one s to its right and receives from the one s to its left.

Picture: all_to_all on 4 ranks. Rank r has a block for each rank (it keeps the one for itself).

    step 1   r -> r + 1      0>1  1>2  2>3  3>0
    step 2   r -> r + 2      0>2  1>3  2>0  3>1
    step 3   r -> r + 3      0>3  1>0  2>1  3>2

In each step every rank sends one block and receives one, so no link waits for another and none gets two at a time.
Per rank: p - 1 messages, all blocks but its own: (p - 1)/p n elements. No data travels twice, so nothing can be less.
Blocks may differ in size (the tokens of a mixture of experts do); an empty one sends no message.
Memory: none but input and output.

Paper: Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication operations in MPICH".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dtcourse.collectives import p2p, personal_forms
from dtcourse.collectives.chunks import TAG, Volume, add_up, blocks_of, one_message


def all_to_all_steps(
    x: torch.Tensor, x_bounds: Sequence[int], y: torch.Tensor, y_bounds: Sequence[int], group: Any
) -> None:
    """Block r of x goes to rank r; block r of y comes from it."""
    rank, ranks = p2p.rank(group), p2p.size(group)
    sends, receives = blocks_of(x, x_bounds), blocks_of(y, y_bounds)
    # 1. The own block does not travel.
    receives[rank].copy_(sends[rank])
    for step in range(1, ranks):
        right, left = (rank + step) % ranks, (rank - step) % ranks
        # 2. Post the receive first, so that the message finds its buffer; then send. 3. Wait for both.
        work = []
        with p2p.batch(group):
            if len(receives[left]):
                work.append(p2p.irecv(receives[left], left, group, TAG))
            if len(sends[right]):
                work.append(p2p.isend(sends[right], right, group, TAG))
        for w in work:
            w.wait()


def all_to_all_volume(block: int, ranks: int, rank: int) -> Volume:
    """One block to each other rank: p - 1 messages, (p - 1)/p n elements."""
    return all_to_all_uneven_volume([block] * ranks, rank)


def all_to_all_uneven_volume(blocks: Sequence[int], rank: int) -> Volume:
    """All blocks but the own, one message each where it is not empty."""
    return add_up(one_message(size) for dst, size in enumerate(blocks) if dst != rank)


# --- torch.distributed's calls ---------------------------------------------------------------------------------

all_to_all = personal_forms.all_to_all(all_to_all_steps)
all_to_all_single = personal_forms.all_to_all_single(all_to_all_steps)
