"""parallelize: an unchanged Transformer on a mesh of every axis, technique after technique.

    config = HybridConfig(dp_shard=2, pp=2, tp=2, micro_batches=4)
    mesh = config.mesh("cpu")
    training = hybrid.parallelize(Transformer(shape), mesh, config)
    optimizer = torch.optim.AdamW(training.module.parameters())
    loss = training.step(tokens, targets)            # the samples of this rank's copy: every rank of it passes the same
    training.clip_grad_norm(1.0)
    optimizer.step()

What each technique leaves behind, the next one finds on the parameters (parameters/placement.py), so the order is that
of the cuts: tensor parallelism and experts cut weights, context parallelism replaces attention, the pipeline takes the
layers apart, and full sharding cuts what each stage has left. A model on the meta device gets memory for what is left
on a rank after the weights are cut, of its own stages alone.

Who has which tokens decides who sums which gradients. The ranks of dp_replicate, dp_shard and cp have different ones:
gradients of what they all hold are averaged over those three, by full sharding where it has cut them, by
parameters/averaging.py where not. Experts that only some of those ranks hold have gathered the others' tokens, so they
are summed over fewer and divided by as many. The ranks of tp and pp have the same tokens: nothing is averaged there.

Source: the order of torchtitan (Liang et al. 2410.06511) and Megatron-LM (Narayanan et al. 2104.04473).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from dtcourse import device, expert_parallel, sequence_parallel, sharding, tensor_parallel
from dtcourse.hybrid.axes import TOKENS, Axes
from dtcourse.hybrid.config import HybridConfig
from dtcourse.hybrid.training import HybridTraining
from dtcourse.parameters.on_meta import give_memory, is_on_meta
from dtcourse.parameters.replicas import Group, broadcast_model
from dtcourse.parameters.seeds import seed_of
from dtcourse.pipeline_parallel import Stage, balance, layers_of, split


def parallelize(model: Any, mesh: DeviceMesh, config: HybridConfig) -> HybridTraining:
    """Cuts the model over the mesh, and returns what trains it. All ranks of the mesh call it.

    model: the course's Transformer, the same on every rank but for its values: the first rank's count. On the meta
           device it has none yet: afterwards a state is to be loaded (load_full_state_dict, checkpoint.load)
    mesh:  with the axes of config, in its order: config.mesh("cpu")

    The module of what is returned keeps the model's parts; the model itself is used no more. Every rank's random state
    becomes one of config.seed and of the axes on which ranks have different tokens or layers.
    Raises ValueError, before anything is changed, where mesh, degrees and model do not fit together.
    """
    axes = Axes(mesh, config)
    config.check_model(model)
    groups_of_experts = axes.folded(config.ep) if hasattr(model.blocks[0].mlp, "experts") else None
    schedule, ranges = config.make_schedule(), ranges_of(model, config)
    if not is_on_meta(model):
        broadcast_model(model)
    cut_tensors(model, axes)
    if groups_of_experts is not None:
        give_out_experts(model, axes, groups_of_experts)
    if is_on_meta(model):
        layers, mine = layers_of(model), schedule.stages_of(axes.rank("pp"))
        give_memory(model, device.current(), [layers[i] for stage in mine for i in ranges[stage]])
    if config.sequence:
        sequence_parallel.parallelize_sequence(model, mesh["tp"])
    cut_sequence(model, axes)
    stages = split(layers_of(model), ranges, schedule, axes.rank("pp"))
    if config.dp_shard > 1:
        shard_stages(stages, axes, groups_of_experts)
    seed_ranks(axes)
    shape = model.config
    return HybridTraining(stages, schedule, axes, groups_of_experts, shape.vocab, shape.max_length)


# --- one technique each ------------------------------------------------------------------------------------------


def cut_tensors(model: nn.Module, axes: Axes) -> None:
    """Heads, MLPs and the vocabulary over tp."""
    if axes.size("tp") > 1:
        plan = tensor_parallel.transformer_plan(model, gather_logits=False)
        tensor_parallel.parallelize(model, plan, axes.mesh["tp"], src_data_rank=None)


def give_out_experts(model: nn.Module, axes: Axes, groups: tuple[Group, Group]) -> None:
    """Experts over ep; gates count the tokens of all ranks that have different ones."""
    mesh = axes.submesh([axes.group("dp_replicate"), *groups], ["dp_replicate", "copies", "ep"])
    expert_parallel.expert_parallel(model, mesh, "ep", broadcast=False)


def cut_sequence(model: Any, axes: Axes) -> None:
    """Attention over the tokens of all cp ranks: all else works token by token."""
    if axes.size("cp") == 1:
        return
    group, config = axes.group("cp"), axes.config
    for block in model.blocks:
        core = block.attention.core
        block.attention.core = (
            sequence_parallel.RingAttentionCore(group, config.order)
            if config.context == "ring"
            else sequence_parallel.UlyssesCore(core, group)
        )


def ranges_of(model: Any, config: HybridConfig) -> list[range]:
    """The layers of each stage: the embedding is the first, the head the last."""
    sizes = config.layers
    if sizes is None:
        return balance([1.0] * (len(model.blocks) + 2), config.make_schedule().num_stages)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def shard_stages(stages: list[Stage], axes: Axes, experts: tuple[Group, Group] | None) -> None:
    """Full sharding of a stage: dense weights over dp_shard x cp, experts over the ranks that hold the same."""
    mesh = shard_mesh(axes, axes.group("dp_shard", "cp"))
    of_experts = None if experts is None else shard_mesh(axes, experts[0])
    for stage in stages:
        # A unit is a block. Embedding and head are the stage's own unit, since they may be one tied weight.
        for block in (layer for layer in stage if hasattr(layer, "mlp")):
            if of_experts is not None:
                sharding.fully_shard(block.get_submodule("mlp.experts"), mesh=of_experts)
            sharding.fully_shard(block, mesh=mesh)
        sharding.fully_shard(stage, mesh=mesh)


def shard_mesh(axes: Axes, over: Group) -> DeviceMesh:
    """Of full sharding: one axis, or the copies of dp_replicate before it."""
    if axes.size("dp_replicate") == 1:
        return axes.submesh([over], ["shard"])
    return axes.submesh([axes.group("dp_replicate"), over], ["replicate", "shard"])


def seed_ranks(axes: Axes) -> None:
    """Dropout: one random state for ranks that hold copies of the same activations (tp), another for all others.

    Inside a parallel region the tp ranks draw differently: tensor_parallel/random_state.py.
    """
    torch.manual_seed(seed_of(axes.config.seed, [axes.rank(name) for name in ("pp", *TOKENS)]))
