"""Do the ranks that share samples have the same ones? Asked once, before the first step.

A sampler by rank in place of `data_rank` gives each tp, cp and pp rank a batch of its own: shapes fit, losses fall, and
what is trained is none of the batches. A checksum from each rank shows it: one small message, over all ranks, so that
all raise or none.
"""

from __future__ import annotations

from torch import Tensor

from dtcourse.collectives.decisions import said_by_all
from dtcourse.hybrid.axes import DATA, Axes
from dtcourse.parameters.checksum import checksum


def check_same_batch(axes: Axes, tokens_BS: Tensor, targets_BS: Tensor) -> None:
    """Raises ValueError on every rank, naming two, unless all ranks of each part of the data have the same samples."""
    data_rank = axes.rank(*DATA)
    both = {"tokens": tokens_BS, "targets": targets_BS}
    mine = {name: (list(t.shape), int(checksum(t))) for name, t in both.items()}
    everyone = said_by_all((data_rank, mine))
    first: dict[int, int] = {}
    for rank, (part, theirs) in enumerate(everyone):
        one = first.setdefault(part, rank)
        unlike = [name for name, said in theirs.items() if said != everyone[one][1][name]]
        if unlike:
            shapes = " and ".join(str(everyone[r][1][unlike[0]][0]) for r in (one, rank))
            raise ValueError(
                f"ranks {one} and {rank} are of one part of the data, data_rank {part} of {axes.size(*DATA)}, and have "
                f"other {unlike[0]} (of shapes {shapes}): pp, cp and tp ranks train on the same whole samples. Give "
                "the sampler rank=training.data_rank and num_replicas=training.data_ranks"
            )
