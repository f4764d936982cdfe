"""A block's kernels, in the order in which they are launched: products, attention, and what moves bytes.

All of one micro-batch on one rank. Each list has the forward pass, and the backward pass of each of its kernels by its
`part`. A pass over numbers counts what it reads and writes; what a program fuses is one pass.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from dtcourse.planner.kernels import Kernel, flash, linear, moving, product
from dtcourse.planner.setting import Setting
from dtcourse.simulator.states import precision_named


class Block:
    """The sizes of a block on one rank, and what they cost. experts: this block's MLP is experts'."""

    def __init__(self, setting: Setting, experts: bool = False) -> None:
        s = setting
        self.setting, self.experts = s, experts
        self.model, self.hardware, self.layout = s.model, s.hardware, s.layout
        self.precision, self.software = s.precision, s.software
        self.sequences, self.length = s.batch.micro_batch, s.length
        self.tokens, self.rows, self.b = s.tokens, s.rows, s.element

    def kernels(self) -> list[Kernel]:
        """All of the block."""
        return [*self.attention(), *self.mlp(), *self.around()]

    def attention(self) -> list[Kernel]:
        """Queries, keys and values; the core; the output."""
        m, tp, N = self.model, self.layout.tp, self.tokens
        keys = max(m.keys // tp, m.head)
        queries = m.queries // tp
        found = [
            *self._linear(N, queries + 2 * keys, m.hidden),
            *self._linear(N, m.hidden, queries),
        ]
        if m.positions == "rotary":
            # Eager: to float32, a product of complex numbers, and back; compiled: read and write.
            each = 2 * self.b if self.software.compiled or self.software.fused else 20
            found += self._pass(N * (queries + keys) * each, 1 if each < 20 else 6, back=1.0)
        if self.layout.cp > 1 and self.layout.context != "ulysses":
            # The results of each part of the keys, with their sums, become one: read both, write one, in float32.
            merged = (self.layout.cp - 1) * N * queries * (2 * 4 + self.b)
            found += self._pass(merged, 2 * (self.layout.cp - 1), back=1.0)
        return found + (self._unfused() if self.software.attention == "unfused" else self._flash())

    def _flash(self) -> list[Kernel]:
        m, s = self.model, self.software
        heads = m.heads // self.layout.tp
        shares = s.flash_share(self.hardware.like, m.head)
        # Parts of a sequence: each rank's queries see, in zig-zag order, as many keys as any other's.
        return flash(
            self.sequences, self.length, m.sequence, heads, m.head, self.hardware, shares, m.causal
        )

    def _unfused(self) -> list[Kernel]:
        """Scores, softmax, dropout and their product with the values, each in memory."""
        m, hw, b = self.model, self.hardware, self.b
        count, q, k = self.sequences * m.heads // self.layout.tp, self.length, m.sequence
        scores, N = count * q * k, self.tokens
        wide = N * m.queries // self.layout.tp
        options: dict[str, Any] = {"hardware": hw, "count": count, "element": b, "core": True}
        options["tf32"] = self.precision.tf32
        found = [
            product(q, k, m.head, **options),
            product(q, m.head, k, **options),
            *(product(q, k, m.head, part="input", **options) for _ in range(2)),
            *(product(q, m.head, k, part="input", **options) for _ in range(2)),
        ]
        masked = 1 if self.software.fused else 3  # scale, mask and softmax in one kernel, or three
        found.append(moving(scores * 2 * b * masked, hw, launches=masked, core=True))
        back = 3 * b * scores * (1 if self.software.fused else 5 / 3)
        found.append(moving(back, hw, launches=masked, part="input", core=True))
        if m.dropout:
            found.append(moving(scores * (2 * b + 1), hw, core=True))
            found.append(moving(scores * (2 * b + 1), hw, part="input", core=True))
        # Heads go before tokens and back: copies of queries, keys, values and of the result.
        found.append(moving(4 * wide * 2 * b, hw, launches=4, core=True))
        found.append(moving(4 * wide * 2 * b, hw, launches=4, part="input", core=True))
        return found

    def mlp(self) -> list[Kernel]:
        """One MLP, or the gate and the experts that the tokens go to."""
        m, N, tp = self.model, self.tokens, self.layout.tp
        if not self.experts:
            return self._mlp(N, m.wide // tp, 1)
        # The gate is multiplied in the activations' dtype also where other layers are in 8 bits.
        found = self._linear(
            self.rows if self.layout.etp < tp else N, m.experts, m.hidden, eight=False
        )
        # As many rows as it sends, for tokens come from others as they go to them; evenly over this rank's experts, but
        # for the fullest rank, which all wait for.
        sent, local = self.setting.dispatched, self.setting.experts_on_rank
        each = math.ceil(sent * self.software.imbalance / local)
        found += self._mlp(each, m.expert // self.layout.etp, local)
        if m.shared:
            found += self._mlp(N, m.shared * m.expert // tp, 1)
        # To the experts' order and back: the rows, and what they are weighted by.
        return found + self._pass(2 * sent * m.hidden * 3 * self.b, 8, back=1.0)

    def _mlp(self, rows: int, width: int, count: int) -> list[Kernel]:
        m, b, s = self.model, self.b, self.software
        up = 2 if m.gated else 1
        found = self._linear(rows, up * width, m.hidden, count)
        down = self._linear(rows, m.hidden, width, count)
        found += [replace(each, last=True) for each in down]
        numbers = rows * count * width
        if not m.gated:
            return found + self._pass(numbers * 2 * b, 1, back=1.5)
        passes = 3 * b if s.fused or s.compiled else 5 * b  # silu and product, in one kernel or two
        return found + self._pass(numbers * passes, 1 if passes == 3 * b else 2, back=1.6)

    def around(self) -> list[Kernel]:
        """Norms, residual sums and dropouts; gradients added to those of earlier micro-batches."""
        m, b, s = self.model, self.b, self.software
        one = self.rows * m.hidden * b
        norm, launches = (
            (2 * one, 1) if s.fused or s.compiled or m.norm == "layer" else (7 * one, 5)
        )
        found = self._pass(2 * norm, 2 * launches, back=2.0)
        # Residual sum: two read, one written; backward, the sum of both gradients.
        if m.dropout and not s.fused:
            found += self._pass(2 * (2 * one + one / b), 2, back=1.0)
        mask = 2 * one / b if m.dropout and s.fused else 0
        found += self._pass(2 * 3 * one + mask, 2, back=1.0)
        tensors = 4 * (2 if m.biases else 1) + (4 if m.biases else 2)
        found.append(moving(self.accumulated(), self.hardware, launches=tensors, part="weight"))
        if self.cast():
            found.append(moving(self.cast(), self.hardware, launches=tensors))
        if m.biases:  # sums over tokens, of what the products have just written
            wide = 3 * m.queries + m.wide
            found.append(
                moving(
                    self.tokens * wide / self.layout.tp * b,
                    self.hardware,
                    launches=4,
                    part="weight",
                )
            )
        return found

    def accumulated(self) -> float:
        """Bytes of adding this micro-batch's gradients of the block to what is there: two read, one written.

        Of a single micro-batch there is nothing to add to; where gradients are scattered after each, sharding.py
        has it.
        """
        s = self.setting
        if s.layout.stage >= 2 and s.layout.shared > 1 and not s.layout.once:
            return 0.0
        return self.parameters() * (self.b + 2 * s.accumulate) if s.micro_batches > 1 else 0.0

    def cast(self) -> float:
        """Bytes of casting the block's weights for this micro-batch: torch.autocast does, full sharding has."""
        casts = precision_named(self.precision.states).casts and self.layout.stage < 3
        return 6.0 * self.parameters() if casts else 0.0

    def parameters(self) -> float:
        """Numbers of the block's weights that this rank computes with."""
        m, tp = self.model, self.layout.tp
        if not self.experts:
            return (m.attention_parameters + m.mlp_parameters(m.wide)) / tp
        # The gate is whole on each rank.
        rest = (m.attention_parameters + m.shared * m.mlp_parameters(m.expert)) / tp
        return rest + m.hidden * m.experts + self.expert_parameters()

    def expert_parameters(self) -> float:
        """Of these, the experts'."""
        each = self.model.mlp_parameters(self.model.expert) / self.layout.etp
        return self.setting.experts_on_rank * each

    def _linear(
        self, rows: int, out: int, into: int, count: int = 1, eight: bool = True
    ) -> list[Kernel]:
        eight = eight and self.precision.eight_bit
        options: dict[str, Any] = {"element": self.b, "eight": eight, "tf32": self.precision.tf32}
        found = linear(rows, out, into, self.hardware, count=count, **options)
        if not eight:
            return found
        # What is multiplied is read for its largest number, read again, and written in 8 bits.
        once = rows * into * count * (2 * self.b + 1)
        again = rows * out * count * (2 * self.b + 1)
        few = 1 if self.software.compiled else 4
        return [
            *found,
            moving(once + into * out * count * (2 * self.b + 1), self.hardware, launches=few),
            moving(again, self.hardware, launches=few, part="input"),
        ]

    def _pass(self, nbytes: float, launches: int, back: float) -> list[Kernel]:
        """Forward bytes, and `back` times as many backward."""
        return [
            moving(nbytes, self.hardware, launches=launches),
            moving(nbytes * back, self.hardware, launches=launches, part="input"),
        ]


def head(setting: Setting) -> list[Kernel]:
    """The last norm, the output layer and the loss of one micro-batch."""
    s, model, hardware, software = setting, setting.model, setting.hardware, setting.software
    N, b = s.tokens, s.element
    columns = math.ceil(model.vocabulary / s.layout.tp)
    logits = s.logits
    found = linear(N, columns, model.hidden, hardware, element=b, tf32=s.precision.tf32)
    # Bytes per logit, forward and backward: to float32, logarithms of probabilities, their gradient, and back.
    forward, backward, launches = {
        "eager": (b + 4 + 8, 12 + 4 + b, 3),
        "loss_parallel": (b + 4 + 8, 12 + 4 + b, 9),
        "vocab_parallel": (b + 4 + 4 + 8 + 8 + 4 + 8, 8 + 4 + b, 9),
        "fused": (b + 4, b + b + 4, 1),
    }[s.loss]
    if software.compiled:
        forward, backward = min(forward, b + 8), min(backward, b + 8)
    found.append(moving(logits * forward, hardware, launches=launches))
    found.append(moving(logits * backward, hardware, launches=launches, part="input"))
    weight = columns * model.hidden * (b + 2 * s.accumulate)
    found.append(moving(weight, hardware, part="weight"))
    norm = s.rows * model.hidden * b
    found += [moving(2 * norm, hardware), moving(4 * norm, hardware, launches=2, part="input")]
    return found


def embedding(setting: Setting) -> list[Kernel]:
    """The tables' rows of one micro-batch, and a dropout."""
    s, model, hardware = setting, setting.model, setting.hardware
    passes = 2 + 3 * (model.positions == "learned") + 2 * model.dropout
    nbytes = s.tokens * model.hidden * passes * s.element
    rows = math.ceil(model.vocabulary / s.layout.tp)
    weight = rows * model.hidden * (s.element + 2 * s.accumulate)
    return [
        moving(nbytes, hardware, launches=passes // 2 + 1),
        moving(nbytes, hardware, launches=passes // 2 + 1, part="input"),
        moving(weight, hardware, launches=2, part="weight"),
    ]
