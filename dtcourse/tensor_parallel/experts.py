"""Experts of a mixture, the matrices of each cut over the ranks of the tensor axis: one parallel region for all.

    up (E, D, F), gate   by columns: F / p of each expert's outputs       hidden rows (R, F / p)
    down (E, F, D)       by rows: its inputs are those outputs            sums of p parts, one all-reduce

Each rank computes a part of *every* expert that it has for the same rows. Where experts are given out over another axis
(dtcourse.expert_parallel), a rank has E / q of them and of each 1 / p, and rows travel between ranks of equal place on
the tensor axis. That needs gates which choose alike on all tensor ranks. They do, since their inputs, weights and
random states are equal there, bit by bit. Source: DeepSpeed-TED, Singh et al., arXiv 2303.06318.

Per rank: 1 / p of the experts' weights. Bytes: an all-reduce of the R rows of D numbers that this rank's experts get,
forward, and one backward. An MLP in their place would send its N tokens; top-k experts send k times as much. All p
tensor ranks send the same rows to the experts; TED sends each once and gathers it behind, which is not done here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from dtcourse.parameters.cuts import Sliced
from dtcourse.parameters.deep_copies import KnowsGroups
from dtcourse.parameters.placement import place, placement_of
from dtcourse.parameters.replicas import Group
from dtcourse.tensor_parallel import mappings
from dtcourse.tensor_parallel.shards import require_divides

EXPERT_DIMS = {"gate": 2, "gate_bias": 1, "up": 2, "up_bias": 1, "down": 1}
"""The dim along which each parameter is cut. The bias of `down` is whole."""
REGION = ("hidden", "product", "plus")


class TensorParallelExperts(KnowsGroups, nn.Module):
    """This rank's columns and rows of `experts`, in its place. x_RD, counts_E, equal on all ranks -> (R, D), equal.

    experts: as models.Experts. It is cut itself: `sliced` is what is left of it
    """

    def __init__(self, experts: Any, group: Group = None) -> None:
        super().__init__()
        self.names_in_whole = {"sliced": ""}
        self.group, self.sliced = group, experts
        for name, dim in EXPERT_DIMS.items():
            whole = getattr(experts, name, None)
            if whole is None:
                continue
            shard = Sliced(dim, whole.shape[dim], group)
            mine = nn.Parameter(shard.cut(whole.detach()), requires_grad=whole.requires_grad)
            place(mine, placement_of(whole).beside(group), shard)
            setattr(experts, name, mine)

    @property
    def num_experts(self) -> int:
        """How many experts this rank has a part of."""
        return int(self.sliced.num_experts)

    @num_experts.setter
    def num_experts(self, number: int) -> None:
        self.sliced.num_experts = number

    def forward(self, x_RD: Tensor, counts_E: Tensor) -> Tensor:
        """The bias is added after the sum: before it, it would count p times."""
        experts = self.sliced
        hidden_RF = experts.hidden(mappings.copy(x_RD, self.group), counts_E)
        y_RD = mappings.reduce(experts.product(hidden_RF, experts.down, counts_E), self.group)
        summed: Tensor = experts.plus(y_RD, experts.down_bias, counts_E)
        return summed


@dataclass(frozen=True)
class ExpertsParallel:
    """The experts of a mixture (models.Experts): the matrices of each are a parallel region, all experts' in one.

    Before expert_parallel gives the experts out over another axis, or after.
    """

    def check(self, module: nn.Module, name: str, size: int) -> None:
        for part, inner in _inner(module):
            return self.check(inner, f"{name}.{part}", size)
        missing = [a for a in (*REGION, "up", "down", "num_experts") if not hasattr(module, a)]
        if missing:
            raise ValueError(
                f"ExpertsParallel is for experts with {', '.join(REGION)}, up and down, as models.Experts; {name}, a "
                f"{type(module).__name__}, has no {', '.join(missing)}"
            )
        width = module.get_parameter("up").shape[2]
        require_divides(width, size, f"the width of the experts of {name}")

    def cuts(self, module: nn.Module) -> dict[str, int]:
        for part, inner in _inner(module):
            return {f"{part}.{name}": dim for name, dim in self.cuts(inner).items()}
        held = {name for name, _ in module.named_parameters()}
        return {name: dim for name, dim in EXPERT_DIMS.items() if name in held}

    def apply(self, module: nn.Module, group: Group) -> nn.Module:
        for part, inner in _inner(module):
            setattr(module, part, self.apply(inner, group))
            return module
        return TensorParallelExperts(module, group)


def _inner(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The module that another technique has put this one around, where it has: in the whole model both are one."""
    renamed: dict[str, str] = getattr(module, "names_in_whole", {})
    return [(child, getattr(module, child)) for child, name in renamed.items() if not name]
