"""Bytes of a stage's rank at the peak of a step, by kind: the simulator's formulas, cut by the layout.

What stays whole under tensor parallelism (norms' inputs, masks, the streams between layers) is cut along the tokens
where sequences are; all else lies in tp parts (Korthikanti et al. 2205.05198, table 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dtcourse import device
from dtcourse.planner import sharding
from dtcourse.planner.model import Model
from dtcourse.planner.setting import Setting
from dtcourse.planner.sharding import Weights
from dtcourse.simulator import activations
from dtcourse.simulator.states import model_states, optimizer_bytes, precision_named

KINDS = (
    "parameters", "gradients", "optimizer", "activations", "temporary", "gathered", "fragments", "context",
)  # fmt: skip
# Rows of simulator.activations.block that tensor parallelism leaves whole.
WHOLE = (
    "input of the block (norm 1's input)", "norm 1's mean and scale", "input of query, key and value", "norm 2's input",
    "norm 2's mean and scale", "input of the MLP", "two dropout masks",
)  # fmt: skip
# Rows that are as wide as all heads together, and rows with a number for each pair of a query and a key.
BY_QUERIES = ("queries", "input of the output layer")
BY_KEYS = ("causal mask", "attention probabilities", "attention probabilities, cast")

# Bytes of a logit, besides itself.
LOSS = {"eager": 12, "loss_parallel": 12, "vocab_parallel": 8, "fused": 2}


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
    def of(cls, model: Model, experts: bool = False, eager: bool = False) -> Shape:
        """experts: of a layer with experts, all that a token goes through as one MLP; eager: nothing is fused."""
        width = model.expert * (model.top_k + model.shared) if experts else model.wide
        # The simulator keeps an activation's input and output, F each; a gate has two inputs, and where
        # silu and product are not one kernel, what is between them.
        if model.gated:
            width = width * (4 if eager else 3) // 2
        return cls(
            model.vocabulary, model.hidden, model.layers, model.heads, model.head, model.grouped,
            width, 0.1 * model.dropout,
        )  # fmt: skip


def block_bytes(setting: Setting, experts: bool = False, recompute: str | None = None) -> float:
    """What one block of one micro-batch keeps on a rank."""
    s, layout, m = setting, setting.layout, setting.model
    kind = s.software.recompute if recompute is None else recompute
    if kind == "full" and s.software.recompute_every > 1 and recompute is None:
        again = s.software.again  # the mean of those that keep all, and of those that do not
        return again * block_bytes(s, experts, "full") + (1 - again) * block_bytes(
            s, experts, "none"
        )
    if kind == "ops":
        return _ops_bytes(s, experts)
    eager = not (s.software.fused or s.software.compiled)
    rows = activations.block(
        Shape.of(m, experts, eager),
        s.batch.micro_batch,
        s.length,
        **_options(s, kind),
    )
    total = 0.0
    for each in rows:
        wide = m.queries / m.hidden if each.name in BY_QUERIES else 1.0
        keys = layout.cp if each.name in BY_KEYS else 1  # of a rank's queries with the keys of all
        total += each.bytes * wide * keys / (s.cut if each.name in WHOLE else layout.tp)
    if kind == "none" and m.dropout and s.software.attention == "unfused":
        # Of the probabilities: a mask, and what it has left (2205.05198, equation 1).
        total += _scores(s) * (1 + s.element)
    if experts and kind != "full":
        # The rows that come, in the experts' order, and what comes back before it is summed.
        total += (s.received + s.dispatched) * m.hidden * s.element
        total += 2 * 4 * s.tokens * m.experts  # the gate's scores and probabilities, float32
        # Of the fullest rank more of the inner layer, which is counted for as many rows as are sent.
        inner = Shape.of(replace(m, shared=0), True, eager).ff * 2 * s.element / m.top_k
        total += (s.received - s.dispatched) * inner / layout.etp
    return total


def _ops_bytes(s: Setting, experts: bool) -> float:
    """torchtitan's selective recomputation: the block's input, and the results of attention's core, of every second
    product (queries, values, one of the MLP's inner layer, the last one, before tensor ranks sum it) and of
    reduce-scatters.
    """
    m, tp = s.model, s.layout.tp
    inner = s.tokens * (m.shared * m.expert if experts else m.wide) / tp
    if experts:
        inner += s.received * m.expert / s.layout.etp
    scattered = 2 * s.rows if s.layout.sequence_parallel else 0
    stream = (s.rows + s.tokens + scattered) * m.hidden
    kept = stream + s.tokens * (2 * m.queries + m.keys) / tp + inner
    return kept * s.element + 4 * s.tokens * m.heads / tp


def _scores(s: Setting) -> float:
    return s.batch.micro_batch * s.model.heads / s.layout.tp * s.length * s.model.sequence


def working_bytes(setting: Setting, experts: bool = False) -> float:
    """What the backward pass of a block needs beside what is kept: all of it that is computed again, and gradients of
    the MLP's inner layer or of attention's (simulator.activations.working_bytes, cut by the layout).
    """
    s, m, tp = setting, setting.model, setting.layout.tp
    again = max(0.0, block_bytes(s, experts, "none") - block_bytes(s, experts))
    ff, stream = Shape.of(m, experts).ff * s.tokens / tp, s.rows * m.hidden
    if experts:
        ff *= s.received / s.dispatched
    mlp = again + (ff + 2 * stream) * s.element
    if s.software.attention != "unfused":
        return mlp
    freed = min(again, (2 * ff + stream) * s.element)
    return max(mlp, again - freed + (2 * _scores(s) + 4 * s.tokens * m.queries / tp) * s.element)


@dataclass(frozen=True)
class Held:
    """Bytes of one micro-batch on a rank, whatever the stage: `block`, what a block keeps (the mean over layers);
    `working`, what its backward pass needs beside that; `around`, what is kept around the head.
    """

    block: float
    working: float
    around: float

    @classmethod
    def of(cls, setting: Setting) -> Held:
        """They depend on tp, sequence_parallel, cp, ep, the micro-batch, recomputation, and whether stage is 3."""
        s, kinds = setting, _kinds(setting)
        shape, options = Shape.of(s.model), _only_precision(s)
        rows = activations.around(shape, s.batch.micro_batch, s.length, **options)
        return cls(
            sum(share * block_bytes(s, experts) for experts, share in kinds),
            max(working_bytes(s, experts) for experts, _ in kinds),
            # The head's input is cut along the tokens until it is gathered.
            sum(
                row.bytes / (s.layout.tp if row.name == "cast weights" else s.cut)
                for row in rows
                if "logarithms" not in row.name
            ),
        )


def stage_bytes(
    setting: Setting,
    units: Sequence[tuple[Weights, int]],
    blocks: int,
    last: bool,
    in_flight: float,
    held: Held | None = None,
) -> dict[str, float]:
    """By kind. units: of the rank, in order, and how many in a row are alike; blocks: how many of them are; last: it
    has the head; in_flight: micro-batches that it keeps at once; held: where it is known already.
    """
    s, held = setting, held or Held.of(setting)
    weights = sum((each * n for each, n in units), Weights(0.0))
    states = states_bytes(s, weights, s.layout.stage, s.layout.shared, s.layout.expert_copies)
    kept = held.block * blocks * in_flight
    # Offloaded: one is computed, one is on its way.
    acts = min(kept, 2 * held.block) if s.software.offload else kept
    temporary = held.working if blocks else 0.0
    if last:
        acts += held.around
        # Logits, and in float32: the same, logarithms of probabilities, their gradient (as the loss keeps them).
        temporary = max(temporary, s.logits * (s.element + LOSS[s.loss]))
    gathered = sharding.held(s, units, table=last and s.model.tied and not s.layout.ends_apart)
    if (
        not s.software.optimizer_fused
    ):  # a number for each of the optimizer's, when activations are gone
        adam = precision_named(s.precision.states).moments * (s.precision.optimizer == "adam")
        one = adam / max(1, optimizer_bytes(s.precision.states, s.precision.optimizer))
        temporary = max(temporary, states["optimizer states"] * one - acts)
    loose = s.software.fragmentation * (acts + temporary + gathered)
    found = (
        states["parameters"], states["gradients"], states["optimizer states"], acts, temporary, gathered,
        loose, float(s.hardware.context),
    )  # fmt: skip
    return dict(zip(KINDS, found, strict=True))


def host_bytes(setting: Setting, blocks: int, in_flight: float) -> float:
    """In the host's memory, of one device: activations that are offloaded."""
    if not setting.software.offload:
        return 0.0
    each = sum(share * block_bytes(setting, experts) for experts, share in _kinds(setting))
    return max(0.0, each * (blocks * in_flight - 2))


def _kinds(s: Setting) -> list[tuple[bool, float]]:
    """(whether a layer has experts, the share of layers that are so)."""
    experts = s.model.expert_layers / s.model.layers
    return [(kind, share) for kind, share in ((False, 1 - experts), (True, experts)) if share]


def states_bytes(
    s: Setting, weights: Weights, stage: int, shared: int, copies: int
) -> dict[str, float]:
    """By kind, of ZeRO's stage over the ranks that share dense weights, and over those that share experts'."""
    states = {"parameters": 0.0, "gradients": 0.0, "optimizer states": 0.0}
    for numbers, ranks in ((weights.dense, shared), (weights.experts, copies)):
        if numbers:
            found = model_states(
                round(numbers), precision=s.precision.states, optimizer=s.precision.optimizer,
                stage=stage, ranks=ranks,
            )  # fmt: skip
            for kind, nbytes in found.items():
                states[kind] += nbytes
    # Gradients that micro-batches are added to may be wider than those that backward makes (Megatron's main gradients).
    wider = s.accumulate / precision_named(s.precision.states).gradients
    states["gradients"] *= max(1.0, wider)
    return states


def _options(setting: Setting, recompute: str) -> dict[str, Any]:
    plain = setting.software.attention == "unfused"
    return {
        **_only_precision(setting),
        "attention": "plain" if plain else "efficient",
        "checkpointing": recompute,
    }


def _only_precision(setting: Setting) -> dict[str, Any]:
    name = "bf16 + master" if setting.element == 2 else "fp32"
    # Sharded weights are gathered in the compute dtype: nothing is cast layer by layer, as autocast does.
    if precision_named(setting.precision.states).casts and setting.layout.stage < 3:
        name = setting.precision.states
    return {"precision": name, "on": device.GPU}


__all__ = ["KINDS", "Held", "Shape", "block_bytes", "host_bytes", "stage_bytes", "working_bytes"]
