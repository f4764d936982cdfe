"""What a program makes of a model: its attention, its fused kernels, its precision, and what it computes twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dtcourse.simulator.states import OPTIMIZERS, precision_named

# The part of a card's peak that attention's kernels reach, forward and backward, at long sequences.
# A100: FlashAttention 1 reaches 25-40 %, 2 reaches 50-73 % (2307.08691, its abstract and section 4). H100: 2 reaches
# 370 and 3 about 640 of 989 TFLOP/s forward (2407.08608, figure 5; head_dim 128); backward by the same papers.
FLASH: dict[str, dict[str, tuple[float, float]]] = {
    "flash1": {"A100": (0.36, 0.30), "H100": (0.22, 0.18)},
    "flash2": {"A100": (0.62, 0.52), "H100": (0.37, 0.33)},
    "flash3": {"A100": (0.62, 0.52), "H100": (0.62, 0.50)},
}
RECOMPUTE = ("none", "selective", "ops", "full")
LOSSES = ("eager", "vocab_parallel", "fused")


@dataclass(frozen=True)
class Software:
    """attention:  "unfused" (scores and masks in memory), "flash1", "flash2" or "flash3"
    attention_share: part of the peak that its kernels reach, forward and backward; None: the table above
    fused:      chains of element-wise operations are one kernel each (Megatron's, Apex's)
    compiled:   torch.compile: the same, more of them, and fewer launches
    loss:       "eager" (logits in float32), "vocab_parallel" (Megatron's) or "fused"
    optimizer_fused: one pass over the states; else about two and a half
    collective_launches: what a collective costs the host, in kernels
    recompute:  "none", "selective" (attention's core: Megatron's), "ops" (all but attention's core and every second
                product: torchtitan's selective), "full"
    recompute_every: with "full", every so many layers; the others keep what they made
    early_stop: a block is run again only until all that its backward pass needs is there: not its last product
                (PyTorch's checkpoints that are not reentrant, from 2.1 on)
    offload:    activations wait in the host's memory, bytes a second each way; 0: they do not
    """

    attention: str = "flash2"
    attention_share: tuple[float, float] | None = None
    fused: bool = False
    compiled: bool = False
    loss: str = "eager"
    optimizer_fused: bool = True
    collective_launches: Any = 2.0
    recompute: str = "none"
    recompute_every: int = 1
    early_stop: bool = False
    offload: Any = 0.0

    def __post_init__(self) -> None:
        kinds = ("unfused", *FLASH)
        for name, known in (("attention", kinds), ("recompute", RECOMPUTE), ("loss", LOSSES)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} is one of {', '.join(map(repr, known))}; got {getattr(self, name)!r}"
                )
        if self.recompute_every < 1:
            raise ValueError(f"recompute_every is at least 1 layer; got {self.recompute_every}")

    def flash_share(self, like: str) -> tuple[float, float]:
        """Part of the peak, forward and backward, on this kind of card."""
        if self.attention_share is not None:
            return self.attention_share
        return FLASH[self.attention]["A100" if like == "A100" else "H100"]

    @property
    def again(self) -> float:
        """The part of the layers whose forward pass is run twice."""
        return 1 / self.recompute_every if self.recompute == "full" else 0.0


@dataclass(frozen=True)
class Precision:
    """states:  a row of simulator.states.PRECISIONS: bytes of parameters, gradients, master copies and moments
    compute:    bytes of a number in matrix products
    gather:     bytes of a parameter when sharded ones are gathered
    reduce:     bytes of a gradient when gradients are averaged
    accumulate: bytes of the gradient that micro-batches are added to
    optimizer:  "adam", "momentum" or "sgd"
    eight_bit:  the linear layers of blocks multiply 8-bit floats
    gather_8bit: their weights are gathered in 8 bits
    """

    states: str = "bf16 + master"
    compute: int = 2
    gather: int = 2
    reduce: int = 2
    accumulate: int = 4
    optimizer: str = "adam"
    eight_bit: bool = False
    gather_8bit: bool = False

    def __post_init__(self) -> None:
        precision_named(self.states)
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"no optimizer {self.optimizer!r}; there are {', '.join(map(repr, OPTIMIZERS))}"
            )
