"""Bytes of a stage's rank at the peak of a step, by kind: the simulator's formulas, cut by the layout.

What stays whole under tensor parallelism (norms' inputs, masks, the streams between layers) is cut along the tokens
where sequences are; all else lies in tp parts (Korthikanti et al. 2205.05198, table 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dtcourse import device
from dtcourse.planner.model import Model
from dtcourse.planner.sharding import Weights
from dtcourse.planner.stage import Setting
from dtcourse.simulator import activations
from dtcourse.simulator.states import model_states, precision_named

KINDS = ("parameters", "gradients", "optimizer", "activations", "temporary", "gathered")
# Rows of simulator.activations.block that tensor parallelism leaves whole.
WHOLE = (
    "input of the block (norm 1's input)",
    "norm 1's mean and scale",
    "input of query, key and value",
    "norm 2's input",
    "norm 2's mean and scale",
    "input of the MLP",
    "two dropout masks",
)

LOSS = {"eager": 12, "vocab_parallel": 8, "fused": 2}  # bytes of a logit, besides itself


@dataclass(frozen=True)
class Shape:
    """A model as simulator.activations asks of one. ff: of the MLP that a token goes through."""

    vocab: int
    d_model: int
    n_layers: int
    n_heads: int
    d_head: int
    kv_heads: int
    ff: int
    dropout: float

    @classmethod
    def of(cls, model: Model, experts: bool = False) -> Shape:
        """experts: of a layer with experts, all that a token goes through as one MLP."""
        width = model.expert * (model.top_k + model.shared) if experts else model.wide
        # The simulator keeps an activation's input and output, F each; a gate has two inputs.
        if model.gated:
            width = width * 3 // 2
        return cls(
            model.vocabulary, model.hidden, model.layers, model.heads, model.head, model.grouped,
            width, 0.1 * model.dropout,
        )  # fmt: skip


def block_bytes(setting: Setting, experts: bool = False, recompute: str | None = None) -> float:
    """What one block of one micro-batch keeps on a rank."""
    s, layout = setting, setting.layout
    kind = s.software.recompute if recompute is None else recompute
    if kind == "ops":  # about half of the products' results are kept
        return (block_bytes(s, experts, "none") + block_bytes(s, experts, "full")) / 2
    rows = activations.block(
        Shape.of(s.model, experts),
        s.batch.micro_batch,
        s.model.sequence // layout.cp,
        **_options(s, kind),
    )
    whole = layout.tp if layout.sequence_parallel else 1
    return sum(each.bytes / (whole if each.name in WHOLE else layout.tp) for each in rows)


def stage_bytes(
    setting: Setting, weights: Weights, blocks: int, first: bool, last: bool, in_flight: float
) -> dict[str, float]:
    """By kind. blocks: of the rank; in_flight: micro-batches that it keeps at once."""
    s, layout, p = setting, setting.layout, precision_named(setting.precision.states)
    shared = layout.dp_shard * layout.cp
    states: dict[str, float] = {}
    for numbers, ranks in ((weights.dense, shared), (weights.experts, max(1, shared // layout.ep))):
        if numbers:
            found = model_states(
                round(numbers), precision=s.precision.states, optimizer=s.precision.optimizer,
                stage=layout.stage, ranks=ranks,
            )  # fmt: skip
            for kind, nbytes in found.items():
                states[kind] = states.get(kind, 0.0) + nbytes
    experts = s.model.expert_layers / s.model.layers
    each = (1 - experts) * block_bytes(s) + (experts * block_bytes(s, True) if experts else 0)
    kept = each
    if s.software.recompute == "full" and s.software.recompute_every > 1:
        whole = block_bytes(s, recompute="none")
        kept = each * s.software.again + whole * (1 - s.software.again)
    sequence, N = s.model.sequence // layout.cp, s.batch.micro_batch * s.model.sequence // layout.cp
    logits = N * s.model.vocabulary / layout.tp
    acts = 0.0 if s.software.offload else kept * blocks * in_flight
    temporary = max(0.0, block_bytes(s, recompute="none") - each)
    if last:
        around = activations.around(
            Shape.of(s.model), s.batch.micro_batch, sequence, **_only_precision(s)
        )
        acts += sum(row.bytes for row in around if "logarithms" not in row.name)
        # Logits, and in float32: the same, logarithms of probabilities, their gradient (as the loss keeps them).
        temporary = max(temporary, logits * (p.products + LOSS[s.software.loss]))
    gathered = 0.0
    if layout.stage == 3 and layout.once and shared > 1:
        # All through the step: parameters where they are not given back, and gradients until they are averaged.
        kept_whole = 0 if layout.reshard_after_forward else s.precision.gather
        gathered = weights.all * (kept_whole + s.precision.accumulate)
    elif layout.stage >= 2 and shared > 1 and blocks:
        one = weights.all / (blocks + (first or last))
        gathered = one * s.precision.reduce + (
            2 * one * s.precision.gather if layout.stage == 3 else 0
        )
    return dict(
        zip(
            KINDS,
            (
                states["parameters"], states["gradients"], states["optimizer states"],
                acts, temporary, gathered,
            ),
            strict=True,
        )
    )  # fmt: skip


def _options(setting: Setting, recompute: str) -> dict[str, Any]:
    plain = setting.software.attention == "unfused"
    return {
        **_only_precision(setting),
        "attention": "plain" if plain else "efficient",
        "checkpointing": recompute,
    }


def _only_precision(setting: Setting) -> dict[str, Any]:
    # Sharded weights are gathered in the compute dtype: nothing is cast layer by layer.
    name = "bf16 + master" if setting.precision.compute == 2 else "fp32"
    return {"precision": name, "on": device.GPU}


__all__ = ["KINDS", "Shape", "block_bytes", "stage_bytes"]
