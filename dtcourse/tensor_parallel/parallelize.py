"""parallelize: an unchanged model, cut over the ranks of one mesh axis, as a plan says.

    mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("data", "tensor"))
    model = Transformer(config)
    parallelize(model, transformer_plan(model), mesh["tensor"])
    model.loss(tokens, targets).backward()      # the same tokens on all tensor ranks

PyTorch's parallelize_module has this shape; a plan maps names of modules, with * for one part of a name, to styles.
Ours changes modules for ones that hold slices and call collectives; PyTorch's turns parameters into DTensors. A layer
of the course's Transformer has two parallel regions, attention and MLP, with one all-reduce each way each, so 4 (p -
1)/p of its activations B S d forward, and as much backward; PyTorch's plan of single layers sums the gradient of the
attention's input three times, once each for query, key and value. Source: Megatron-LM, Shoeybi et al. 1909.08053.

Per rank of p: 1 / p of the weights that the plan names; norms, positions and the biases of row-parallel layers whole.
Those have equal gradients on all tensor ranks, bit by bit, so their copies stay equal without a message; where ranks
hold tokens of their own (SequenceParallel, rows that end in Shard(1)), their gradients are added up. Data
parallelism over the other axis of the mesh takes the model as it is: DistributedDataParallel(model, process_group=...),
or fully_shard(model, mesh=mesh["data"]).
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dtcourse.parameters.cuts import EXPERT, TENSOR, Replicated
from dtcourse.parameters.kept_placements import keep
from dtcourse.parameters.placement import place, placement_of
from dtcourse.parameters.replicas import broadcast_model
from dtcourse.parameters.slices import require_uncut, require_whole
from dtcourse.tensor_parallel.experts import ExpertsParallel
from dtcourse.tensor_parallel.random_state import same_on_all_ranks
from dtcourse.tensor_parallel.single_layers import ColwiseParallel, RowwiseParallel
from dtcourse.tensor_parallel.styles import HeadwiseParallel, RegionParallel, Style

Plan = Mapping[str, Style]


def parallelize(
    model: nn.Module, plan: Plan | Style, mesh: DeviceMesh, *, src_data_rank: int | None = 0
) -> Any:
    """Cuts the modules that the plan names, in place, and returns the model. All ranks of the mesh call it.

    model:         the same on every rank but for its values. Frozen parameters stay frozen, tied ones tied
    plan:          name -> style; "blocks.*.mlp" is each block's, "" the model itself, and so is one style alone: what
                   is returned is then another module. `transformer_plan` has the course's Transformer's
    mesh:          one axis
    src_data_rank: the rank of the axis whose values count: the others get them first. None: they have them already,
                   and nothing is sent

    Every rank's default random state becomes the same one (random_state.py says why); for src_data_rank=None a fixed
    one.
    Raises ValueError, before anything is changed, where the plan names nothing, or sizes do not divide.
    """
    if mesh.ndim != 1:
        names = mesh.mesh_dim_names
        has = f"{mesh.ndim}, {', '.join(names)}" if names else f"{mesh.ndim} without names"
        example = (
            f"mesh[{names[-1]!r}]"
            if names
            else 'mesh_dim_names=("data", "tensor") and mesh["tensor"]'
        )
        raise ValueError(
            f"tensor parallelism takes one axis of a mesh, and this one has {has}: pass {example}"
        )
    group, size = mesh.get_group(), mesh.size()
    require_whole(
        model.named_parameters(),
        "parallelize",
        "the slices of a part would be put together as those of the whole",
        "Cut a plain model; average it by DistributedDataParallel over the data axis of the mesh, with "
        "ZeroRedundancyOptimizer for the optimizer's states.",
        besides=(TENSOR, EXPERT),
    )
    chosen, tied = check_plan(model, plan, size)
    if src_data_rank is not None:
        who = "parallelize sends rank 0's values to all (put all styles into one plan, or pass src_data_rank=None)"
        broadcast_model(model, src_data_rank, group, who=who)
    training = {name: module.training for name, module in model.named_modules()}
    for name, style in chosen.items():
        parent, _, last = name.rpartition(".")
        parallel = style.apply(model.get_submodule(name), group)
        if name:
            setattr(model.get_submodule(parent), last, parallel)
        else:
            model = parallel
    for first, *others in tied:
        for other in others:
            parent, _, last = other.rpartition(".")
            setattr(model.get_submodule(parent), last, model.get_parameter(first))
    for whole in model.parameters():
        if all(cut.group != group for cut in placement_of(whole).cuts):
            place(whole, placement_of(whole), Replicated(group))
    for name, module in model.named_modules():
        module.training = training.get(name, module.training)
    same_on_all_ranks(group, None if src_data_rank is None else 0)
    keep(model)
    return model


def check_plan(
    model: nn.Module, plan: Plan | Style, size: int
) -> tuple[dict[str, Style], list[list[str]]]:
    """Whether the plan can cut the model over `size` ranks: a style for each module that it names, and tied parameters'
    names. Nothing is changed, and no other rank is asked.

    Raises ValueError, naming the module and its sizes, where it cannot.
    """
    chosen = _resolve(model, plan if isinstance(plan, Mapping) else {"": plan})
    for name, style in chosen.items():
        style.check(model.get_submodule(name), name or "the model", size)
    return chosen, _check_cuts(model, chosen, size)


def transformer_plan(model: nn.Module, *, gather_logits: bool = True) -> dict[str, Style]:
    """The plan of the course's Transformer: heads, MLPs (experts' as well), the vocabulary of both embedding and output
    layer.

    gather_logits: False: model(tokens) is this rank's slice of the logits, for `tensor_parallel.cross_entropy`, which
                   never gathers them; model.loss wants all of them
    """
    mlp = model.get_submodule("blocks.0.mlp")
    plan: dict[str, Style] = {
        "token_embedding": RowwiseParallel(),
        "blocks.*.attention": HeadwiseParallel(),
        "output": ColwiseParallel(gather_output=gather_logits),
    }
    if not hasattr(mlp, "experts"):
        return plan | {"blocks.*.mlp": _region(mlp)}
    plan["blocks.*.mlp.experts"] = ExpertsParallel()
    if mlp.shared is not None:
        plan["blocks.*.mlp.shared"] = _region(mlp.get_submodule("shared"))
    return plan


def _region(mlp: nn.Module) -> RegionParallel:
    return RegionParallel(tuple(name for name in ("gate", "up") if hasattr(mlp, name)), "down")


def _resolve(model: nn.Module, plan: Plan) -> dict[str, Style]:
    """The plan with its patterns filled in: one style a module."""
    names = [name for name, _ in model.named_modules()]
    chosen: dict[str, Style] = {}
    for pattern, style in plan.items():
        wanted = pattern.split(".")
        found = [
            name
            for name in names
            if len(parts := name.split(".")) == len(wanted)
            and bool(name) == bool(pattern)
            and all(fnmatch.fnmatchcase(p, w) for p, w in zip(parts, wanted, strict=True))
        ]
        if not found:
            shown = [n for n in names if n and n.count(".") == pattern.count(".")] or names[1:]
            raise ValueError(
                f"the plan names {pattern!r}, and the model has no such module. It has {', '.join(shown[:12])}"
                + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")
            )
        for name in found:
            if name in chosen:
                raise ValueError(f"the plan names {name} twice: {chosen[name]} and {style}")
            chosen[name] = style
    return chosen


def _check_cuts(model: nn.Module, chosen: dict[str, Style], size: int) -> list[list[str]]:
    """Raises ValueError where a parameter would be cut twice, also by another technique along the same dim, or a tied
    one in two ways; returns the names of tied ones.
    """
    cuts: dict[str, int] = {}
    for name, style in chosen.items():
        for parameter, dim in style.cuts(model.get_submodule(name)).items():
            full = f"{name}.{parameter}" if name else parameter
            if full in cuts:
                raise ValueError(
                    f"the plan cuts {full} twice; the second time by {name!r}: {style}"
                )
            cuts[full] = dim
    held = list(model.named_parameters(remove_duplicate=False))
    require_uncut(((n, whole, cuts[n]) for n, whole in held if n in cuts), size, "parallelize")
    names: dict[int, list[str]] = {}
    for name, whole in held:
        names.setdefault(id(whole), []).append(name)
    tied = [group for group in names.values() if len(group) > 1]
    for first, *others in tied:
        for other in others:
            if cuts.get(first) != cuts.get(other):
                raise ValueError(
                    f"{first} and {other} are one parameter, and the plan cuts them in two ways "
                    f"({_words(cuts.get(first))} and {_words(cuts.get(other))}). An embedding and its output layer go "
                    "together: RowwiseParallel and ColwiseParallel, or neither in the plan"
                )
    return tied


def _words(dim: int | None) -> str:
    return "not at all" if dim is None else f"along dim {dim}"
