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
            self.sequences, self.length, m.sequence, heads, m.head, self.hardware, shares, m.causal,
            self.hardware.rate(8 * self.b, self.precision.tf32),
        )  # fmt: skip

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
            return self._mlp(N, m.wide // tp)
        # The gate is multiplied in the activations' dtype also where other layers are in 8 bits.
        found = self._linear(
            self.rows if self.layout.etp < tp else N, m.experts, m.hidden, eight=False
        )
        # All wait for the fullest rank, whose experts have as many rows each.
        come, local = self.setting.received, self.setting.experts_on_rank
        each = math.ceil(come / local)
        copies = self.layout.expert_copies
        found += self._mlp(each, m.expert // self.layout.etp, local, copies, last=False)
        if m.shared:
            found += self._mlp(N, m.shared * m.expert // tp)
        # To the experts' order and back: the rows that are sent and those that come, and what they are weighted by.
        moved = self.setting.dispatched + come
        return found + self._pass(moved * m.hidden * 3 * self.b, 8, back=1.0)

    def _mlp(
        self, rows: int, width: int, count: int = 1, copies: int | None = None, last: bool = True
    ) -> list[Kernel]:
        """copies: ranks that share its states; last: nothing asks for its result again; of an expert's the gate's
        gradient does.
        """
        m, b, s = self.model, self.b, self.software
        up = 2 if m.gated else 1
        found = self._linear(rows, up * width, m.hidden, count, copies=copies)
        down = self._linear(rows, m.hidden, width, count, copies=copies)
        found += [replace(each, last=last) for each in down]
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
        if self.accumulated():
            kernel = moving(self.accumulated(), self.hardware, launches=tensors, part="weight")
            found.append(kernel)
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
        """Bytes of adding this micro-batch's gradients of the block to what is there."""
        experts = self.expert_parameters() if self.experts else 0.0
        return accumulated(self.setting, self.parameters() - experts, experts)

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

    def linear_parameters(self) -> float:
        """Of these, without the experts', those of linear layers: no norm, bias or gate."""
        m = self.model
        width = m.shared * m.expert if self.experts else m.wide
        return m.hidden * (2 * m.queries + 2 * m.keys + (2 + m.gated) * width) / self.layout.tp

    def expert_parameters(self) -> float:
        """Of these, the experts'."""
        each = self.model.mlp_parameters(self.model.expert) / self.layout.etp
        return self.setting.experts_on_rank * each

    def _linear(
        self,
        rows: int,
        out: int,
        into: int,
        count: int = 1,
        eight: bool = True,
        copies: int | None = None,
    ) -> list[Kernel]:
        """copies: ranks that share the weights' states; None: as all but experts have."""
        eight = eight and self.precision.eight_bit
        options: dict[str, Any] = {"element": self.b, "eight": eight, "tf32": self.precision.tf32}
        found = linear(rows, out, into, self.hardware, count=count, **options)
        if not eight:
            return found
        # What is multiplied is read for its largest number, read again, and written in 8 bits; of weights that come in
        # 8 bits each rank has done so with its part.
        alone = (copies or self.layout.shared) if self.setting.gathers_8bit else 1
        once = rows * into * count * (2 * self.b + 1)
        again = rows * out * count * (2 * self.b + 1)
        few = 1 if self.software.compiled else 4
        return [
            *found,
            moving(
                once + into * out * count * (2 * self.b + 1) / alone, self.hardware, launches=few
            ),
            moving(again, self.hardware, launches=few, part="input"),
        ]

    def _pass(self, nbytes: float, launches: int, back: float) -> list[Kernel]:
        """Forward bytes, and `back` times as many backward."""
        return [
            moving(nbytes, self.hardware, launches=launches),
            moving(nbytes * back, self.hardware, launches=launches, part="input"),
        ]


def accumulated(setting: Setting, dense: float, experts: float = 0.0) -> float:
    """Bytes of adding so many gradients of a micro-batch to those before: two read, one written.

    Of a single micro-batch there is nothing to add to; what is scattered after each is in sharding.py.
    """
    s, layout = setting, setting.layout
    if layout.stage >= 2 and not layout.once:
        dense = dense if layout.shared == 1 else 0.0
        experts = experts if layout.expert_copies * layout.dp_replicate == 1 else 0.0
    return (dense + experts) * (s.element + 2 * s.accumulate) if s.micro_batches > 1 else 0.0
