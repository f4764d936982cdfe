"""expert_parallel: the experts of an unchanged model, given out over the ranks of a mesh. Each rank has its own tokens.

    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "expert"))
    model = expert_parallel(Transformer(config), mesh)  # 2 ranks hold each expert
    optimizer = torch.optim.AdamW(model.parameters())   # of what this rank holds now
    model.loss(tokens, targets).backward()              # this rank's own part of the batch
    average_gradients(model, mesh)                      # gradients.py

1. Each of p ranks holds E / p experts. Gate, and all else, every rank has whole, for the tokens of its own part of the
   batch.
2. The gate chooses experts wherever they are. Tokens travel to them, and the results back: two all-to-alls
   (exchange.py).
3. So memory for experts falls with p and the work does not grow: what each expert computes is the union of what it
   gets.
4. It waits for the rank whose experts are wanted most: balance is time here (a balancing loss, a capacity, scope.py).

Source: GShard, Lepikhin et al. 2006.16668; drop-less, with uneven splits: MegaBlocks, Gale et al. 2211.15841.

Per rank: 1 / p of the experts' weights and of their optimizer's states. Bytes: exchange.py and scope.py.
Experts are any module called as experts(rows_RD, counts_E) whose parameters have an expert in each row of dim 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from dtcourse.expert_parallel.exchange import combine, dispatch
from dtcourse.expert_parallel.scope import AllRanks
from dtcourse.parameters.cuts import EXPERT, TENSOR, Replicated, Sliced
from dtcourse.parameters.deep_copies import KnowsGroups
from dtcourse.parameters.kept_placements import keep
from dtcourse.parameters.placement import place, placement_of
from dtcourse.parameters.replicas import Group, broadcast_tensors
from dtcourse.parameters.same_model import check_same_model, named_tensors
from dtcourse.parameters.slices import require_uncut, require_whole


class ParallelExperts(KnowsGroups, nn.Module):
    """This rank's part of `experts`, in its place. rows_RD, counts_E of all experts -> (R, D),
    each row through its expert.

    groups: as dispatch's. The module `experts` itself is cut: `mine` is what is left of it, from the expert `first` on
    """

    def __init__(self, experts: Any, groups: Sequence[Group]) -> None:
        super().__init__()
        self.names_in_whole = {"mine": ""}
        self.groups, self.num_experts = tuple(groups), experts.num_experts
        position, ranks = 0, 1
        for group in groups:
            position = position * dist.get_world_size(group) + dist.get_rank(group)
            ranks *= dist.get_world_size(group)
        each = self.num_experts // ranks
        cuts, left = [], self.num_experts
        for group in groups:
            cuts.append(Sliced(0, left, group, technique=EXPERT))
            left //= dist.get_world_size(group)
        self.first = position * each
        experts.num_experts = each
        self.mine = experts
        for module in experts.modules():
            for name, whole in list(module.named_parameters(recurse=False)):
                part = self.rows(whole.detach()).clone()
                mine = nn.Parameter(part, requires_grad=whole.requires_grad)
                place(mine, placement_of(whole), *cuts)
                setattr(module, name, mine)

    def rows(self, whole: Tensor) -> Tensor:
        """Of a tensor with a row for each of all experts, this rank's: a view."""
        return whole[self.first : self.first + self.mine.num_experts]

    def forward(self, rows_RD: Tensor, counts_E: Tensor) -> Tensor:
        arrived_SD, counts_e, way = dispatch(rows_RD, counts_E, self.groups)
        return combine(self.mine(arrived_SD, counts_e), way)

    def extra_repr(self) -> str:
        return f"{self.mine.num_experts} of {self.num_experts} experts"


def expert_parallel(
    model: nn.Module,
    mesh: DeviceMesh,
    axes: str | Sequence[str] | None = None,
    *,
    scope: str = "global",
    broadcast: bool = True,
) -> nn.Module:
    """Gives out the experts of every mixture in the model, in place, and returns the model.
    All ranks of the mesh call it.

    model:     has modules with `gate` and `experts` (models.MoE), or is one; the same on all ranks but for its values.
               Of a model that was split before, each stage in its turn: those without a gate start alike, too
    mesh:      all ranks that share a batch, each with tokens of its own
    axes:      over which the experts are given out; None is the last. Two of them, ("node", "rank"), make the
               all-to-all hierarchical. Over the others each expert is held more than once
    scope:     "global": capacity, expert choice and losses are about the tokens of all ranks; "rank": about each rank's
               own
    broadcast: the first rank's values count: the others get them first. False: they have them already

    Raises ValueError, with the numbers, before anything is changed, where experts cannot be given out so.
    """
    over = _axes(mesh, axes)
    groups = [mesh.get_group(i) for i in range(mesh.ndim)]
    ranks = 1
    for i in over:
        ranks *= mesh.size(i)
    require_whole(
        model.named_parameters(),
        "expert_parallel",
        "rows of a part would be given out as experts",
        "Give out the experts of a plain model, and share out the optimizer's states by ZeroRedundancyOptimizer.",
        besides=(EXPERT, TENSOR),
    )
    mixtures = _mixtures(model, ranks, scope)
    for group in groups:
        check_same_model(model, group)
    if broadcast:  # from the first along each axis: the first of all
        for group in groups:
            broadcast_tensors((t for _, t in named_tensors(model)), 0, group)
    for mixture in mixtures:
        mixture.experts = ParallelExperts(mixture.experts, [groups[i] for i in over])
        if scope == "global":
            mixture.scope = AllRanks(groups)
            if hasattr(mixture.gate, "scope"):
                mixture.gate.scope = mixture.scope
    for parameter in model.parameters():
        known = [cut.group for cut in placement_of(parameter).cuts]
        others = [Replicated(g, EXPERT, partial_gradient=True) for g in groups if g not in known]
        place(parameter, placement_of(parameter), *others)
    keep(model)
    return model


def _axes(mesh: DeviceMesh, axes: str | Sequence[str] | None) -> list[int]:
    """The numbers of the axes of the mesh, in the mesh's order."""
    if axes is None:
        return [mesh.ndim - 1]
    wanted, names = [axes] if isinstance(axes, str) else list(axes), mesh.mesh_dim_names or ()
    missing = [name for name in wanted if name not in names]
    if missing or not wanted:
        raise ValueError(
            f"experts are given out over axes of the mesh, and it has {', '.join(names) or 'no names'}; got {axes!r}"
        )
    return sorted(names.index(name) for name in wanted)


def _mixtures(model: nn.Module, ranks: int, scope: str) -> list[Any]:
    """The model's mixtures of experts. Raises ValueError where they cannot be given out to so many ranks."""
    if scope not in ("rank", "global"):
        raise ValueError(f"scope is 'rank' or 'global'; got {scope!r}")
    found: list[tuple[str, Any]] = [
        (name or "the model", module)
        for name, module in model.named_modules()
        if isinstance(getattr(module, "gate", None), nn.Module)
        and hasattr(getattr(module, "experts", None), "num_experts")
    ]
    if not found and getattr(model, "first_loss", None) is None:  # a stage knows of gates in others
        raise ValueError(
            "no module here has a gate and experts: expert_parallel gives out those of models.MoE"
        )
    for name, mixture in found:
        E = mixture.experts.num_experts
        if isinstance(mixture.experts, ParallelExperts):
            raise ValueError(f"the experts of {name} have been given out already")
        if E % ranks:
            fits = ", ".join(str(n) for n in range(1, E + 1) if E % n == 0)
            why = "fewer than one each" if ranks > E else "not as many for each"
            raise ValueError(
                f"{name}: {E} experts on {ranks} ranks are {why}; {fits} "
                f"ranks would do, or a multiple of {ranks} experts"
            )
        held = [(f"{name}.experts.{n}", p) for n, p in mixture.experts.named_parameters()]
        require_uncut(((n, p, 0) for n, p in held), ranks, "expert_parallel")
        for parameter, whole in held:
            if whole.dim() == 0 or len(whole) != E:
                raise ValueError(
                    f"{parameter} of shape {tuple(whole.shape)} has no row for each of {E} experts in dim 0"
                )
        if scope == "rank" and hasattr(mixture.gate, "update"):
            raise ValueError(
                f"{name}: its gate balances by what it counted, and ranks that count their own tokens end with "
                "different gates: scope='global'"
            )
    return [mixture for _, mixture in found]
