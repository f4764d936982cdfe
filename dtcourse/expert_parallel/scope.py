"""Which tokens count together: those of one rank, or those of all ranks that share a batch.

Three things in a mixture of experts look at many tokens at once, and each could mean a rank's own or everybody's:

    losses          shares and mean scores are products of two sums: a mean of local losses is not the whole batch's
                    loss
    capacity        who comes first at an expert, and how many fit
    expert choice   which tokens an expert takes

scope="rank" leaves the plain model's `OneForward` there: nothing is sent, and what is computed depends on how the batch
was cut. scope="global" puts `AllRanks` in its place: a batch gives the same numbers on any number of ranks.

Bytes per rank and forward, p ranks, E experts: 8 (2 E + 2) all-reduced for the losses, and once more in backward; 8 k E
all-gathered for a capacity; for expert choice all scores are all-gathered, (p - 1) times 8 E numbers a token: as much
as the rows of small models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from dtcourse.collectives import autograd
from dtcourse.parameters.replicas import Group
from dtcourse.torch_private import all_gather_single


class AllRanks:
    """The tokens of all ranks of a mesh, in the order of the ranks: in the place of a plain model's `scope`.

    groups: one for each axis of the mesh, the slowest first
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.groups = tuple(groups)

    def total(self, x: Tensor) -> Tensor:
        """The sum over all ranks. Each computes a loss from it, all the same,
        and what counts is the mean of the ranks' losses.
        """
        for group in self.groups:
            x = autograd.all_reduce(x, group=group, using=dist)
        return x

    def before(self, routing: Any, k: int) -> Tensor:
        """(R,): other ranks' pairs before each pair at its expert: earlier choices of all,
        the same choice of lower ranks.
        """
        E, me = routing.logits_NE.shape[1], self.rank
        where_R = routing.choices_R * E + routing.experts_R
        counts_pkE = self.gather(torch.bincount(where_R, minlength=k * E)).view(-1, k, E)
        others_kE = counts_pkE.sum(0) - counts_pkE[me]
        before_kE = others_kE.cumsum(0) - others_kE + counts_pkE[:me].sum(0)
        return before_kE.flatten()[where_R]

    def chosen(self, scores_NE: Tensor, k: float) -> tuple[Tensor, Tensor]:
        """Each expert takes the k N / E largest of all ranks' N scores:
        this rank's tokens_R and experts_R among them.
        """
        E = scores_NE.shape[1]
        lengths = self.gather(torch.tensor([len(scores_NE)], device=scores_NE.device)).tolist()
        longest, first = max(lengths), sum(lengths[: self.rank])
        padded = F.pad(scores_NE, (0, 0, 0, longest - len(scores_NE)))
        scores_pNE = self.gather(padded).view(-1, longest, E)
        all_NE = torch.cat([s[:n] for s, n in zip(scores_pNE, lengths, strict=True)])
        N = len(all_NE)
        tokens_EC = all_NE.T.topk(min(N, math.ceil(k * N / E)), dim=-1).indices - first
        experts_E = torch.arange(E, device=scores_NE.device).view(-1, 1)
        mine_EC = (tokens_EC >= 0) & (tokens_EC < len(scores_NE))
        return tokens_EC[mine_EC], experts_E.expand_as(tokens_EC)[mine_EC]

    @property
    def rank(self) -> int:
        """This rank's place among all."""
        place = 0
        for group in self.groups:
            place = place * dist.get_world_size(group) + dist.get_rank(group)
        return place

    def gather(self, x: Tensor) -> Tensor:
        """All ranks' x, of equal shapes, one after the other along dim 0. Without gradients."""
        for group in reversed(self.groups):
            mine = x.contiguous()
            x = mine.new_empty((len(mine) * dist.get_world_size(group), *mine.shape[1:]))
            all_gather_single(x, mine, group=group)
        return x
