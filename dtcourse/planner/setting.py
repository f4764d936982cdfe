"""All that a prediction is made from, in one object, with what follows from several parts of it."""

from __future__ import annotations

from dataclasses import dataclass

from dtcourse.planner.hardware import Hardware
from dtcourse.planner.layout import Batch, Layout
from dtcourse.planner.model import Model
from dtcourse.planner.software import Precision, Software
from dtcourse.simulator.states import precision_named


@dataclass(frozen=True)
class Setting:
    """Each number is known: a range has become one of its numbers."""

    model: Model
    hardware: Hardware
    layout: Layout
    batch: Batch
    precision: Precision
    software: Software

    @property
    def micro_batches(self) -> int:
        """Of a step, in each copy of the model."""
        return self.batch.sequences // (self.layout.data * self.batch.micro_batch)

    @property
    def length(self) -> int:
        """Tokens of a sequence on one rank."""
        return self.model.sequence // self.layout.cp

    @property
    def tokens(self) -> int:
        """Of a micro-batch on one rank."""
        return self.batch.micro_batch * self.length

    @property
    def rows(self) -> int:
        """Tokens of which a rank has what tensor parallelism leaves whole."""
        return self.tokens // self.cut

    @property
    def cut(self) -> int:
        """Into how many parts sequence parallelism cuts the tokens."""
        return self.layout.tp if self.layout.sequence_parallel else 1

    @property
    def element(self) -> int:
        """Bytes of an activation."""
        return self.precision.compute or 2

    @property
    def reduce(self) -> int:
        """Bytes of a gradient when gradients are averaged."""
        return self.precision.reduce or 2

    @property
    def accumulate(self) -> int:
        """Bytes of the gradient that micro-batches are added to."""
        return self.precision.accumulate or 2

    @property
    def gather(self) -> int:
        """Bytes of a parameter when it is gathered: with ZeRO's stages 1 and 2 updated ones are, as they are kept."""
        if self.layout.stage in (1, 2):
            return precision_named(self.precision.states).parameters
        return self.precision.gather or 2

    @property
    def gathers_8bit(self) -> bool:
        """Whether weights of blocks' linear layers are gathered in 8 bits."""
        return self.precision.gather_8bit and self.layout.stage == 3 and self.layout.shared > 1

    @property
    def peak(self) -> float:
        """Dense operations per second of one device, of the dtype that most products are multiplied in."""
        bits = 8 if self.precision.eight_bit else 8 * self.element
        return self.hardware.rate(bits, self.precision.tf32)

    @property
    def dtype(self) -> str:
        """Of these, in words."""
        if self.element == 4:
            return "TF32" if self.precision.tf32 else "float32"
        return "8-bit" if self.precision.eight_bit else "16-bit"

    @property
    def loss(self) -> str:
        """Which one: Software's, or what is usual."""
        return self.software.loss or ("eager" if self.layout.tp == 1 else "vocab_parallel")

    @property
    def logits(self) -> int:
        """Numbers that a rank's loss is made from, of one micro-batch."""
        parts = 1 if self.loss == "eager" else self.layout.tp
        return self.tokens * -(-self.model.vocabulary // parts)

    @property
    def experts_on_rank(self) -> int:
        """Experts of a layer that this rank has (a part of)."""
        return self.model.experts // self.layout.ep

    @property
    def dispatched(self) -> float:
        """Rows that this rank sends to experts, of all that a token goes to: its own tokens, top_k times."""
        return self.tokens * self.layout.etp / self.layout.tp * self.model.top_k

    @property
    def received(self) -> float:
        """Rows that the fullest rank's experts multiply. Where each rank has all experts, its own and no others'."""
        return self.dispatched * (self.software.imbalance if self.layout.ep > 1 else 1.0)

    def check(self) -> None:
        """Raises ValueError for a dtype that the hardware has no rate of, kernels that it has not, and more devices
        than a node where nothing is known between nodes.
        """
        self.hardware.rate(8 * self.element, self.precision.tf32)
        if self.precision.eight_bit:
            self.hardware.rate(8)
        software = self.software
        if self.element == 4 and software.attention != "unfused" and not software.attention_share:
            raise ValueError(
                f"{software.attention} multiplies 16-bit floats; got compute={self.element} bytes: say "
                "attention='unfused', or the attention_share of a kernel that takes 32 bits"
            )
        software.flash_share(self.hardware.like, self.model.head)
        self.hardware.check_nodes(self.layout.world)
