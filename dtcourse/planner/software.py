"""What a program makes of a model: its attention, its fused kernels, its precision, and what it computes twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dtcourse.planner.ranges import Range, check_ranges, ends
from dtcourse.simulator.states import OPTIMIZERS, precision_named

# The part of a card's peak that attention's kernels reach, forward and backward, at long sequences.
# A100: FlashAttention 1 reaches 25-40 %, 2 reaches 50-73 % (2307.08691, its abstract and section 4). H100: 2 reaches
# 370 and 3 about 640 of 989 TFLOP/s forward (2407.08608, figure 5; head_dim 128); backward by the same papers.
# B200: what was written for older cards runs at the H100's rate, of a higher peak; flash3 is for Hopper alone.
FLASH: dict[str, dict[str, tuple[float, float]]] = {
    "flash1": {"A100": (0.36, 0.30), "H100": (0.22, 0.18), "B200": (0.10, 0.08)},
    "flash2": {"A100": (0.62, 0.52), "H100": (0.37, 0.33), "B200": (0.16, 0.145)},
    "flash3": {"H100": (0.62, 0.50)},
}
# The same papers' figures at head_dim 64 beside 128.
NARROW = {"flash1": 0.9, "flash2": 0.9, "flash3": 0.75}
# Passes over the states of torch's foreach Adam beside those of a fused one, which reads four numbers per parameter and
# writes three: lerp 3, mul 2, addcmul 3, sqrt 2, div 2, add 2, addcdiv 4, weight decay 2.
UNFUSED_OPTIMIZER = 20 / 7
RECOMPUTE = ("none", "selective", "ops", "full")
LOSSES = ("eager", "loss_parallel", "vocab_parallel", "fused")


# Estimates, each with the width of what one has to expect.
ATTENTION_ACHIEVED = Range(0.85, 1.0, 1.1)
COMPILED_LAUNCHES = Range(0.3, 0.5, 0.8)
COLLECTIVE_LAUNCHES = Range(1.0, 2.0, 4.0)
IMBALANCE = Range(1.0, 1.0, 1.3)
FRAGMENTATION = Range(0.0, 0.05, 0.15)


@dataclass(frozen=True)
class Software:
    """attention:  "unfused" (scores and masks in memory), "flash1", "flash2" or "flash3"
    attention_share: part of the peak that its kernels reach, forward and backward; None: the table above
    attention_achieved: part of that share which is reached at this head's width and length (the papers' own spread)
    fused:      chains of element-wise operations are one kernel each (Megatron's, Apex's)
    compiled:   torch.compile: the same, more of them, and fewer launches
    compiled_launches: part of the launches that is then left (an estimate; 1 with none of its kernels fused)
    loss:       "eager" (logits in float32, whole on each tp rank), "loss_parallel" (torch's: the same of a part of the
                vocabulary), "vocab_parallel" (Megatron's) or "fused"; None: the first, or with tp the third
    optimizer_fused: one pass over the states; else as many as torch's foreach kernels make (UNFUSED_OPTIMIZER)
    collective_launches: what a collective costs the host, in kernels
    recompute:  "none", "selective" (attention's core: Megatron's), "ops" (all but attention's core and every second
                product: torchtitan's selective), "full"
    recompute_every: with "full", every so many layers; the others keep what they made
    early_stop: a block is run again only until all that its backward pass needs is there: not its last product
                (PyTorch's checkpoints that are not reentrant, from 2.1 on)
    offload:    activations wait in the host's memory; bytes per second each way, 0: they do not
    imbalance:  tokens of the fullest expert's rank over the mean, which all others wait for
    fragmentation: bytes that the allocator holds and no tensor uses, as a part of activations and temporaries
    """

    attention: str = "flash2"
    attention_share: tuple[float, float] | None = None
    attention_achieved: Any = ATTENTION_ACHIEVED
    fused: bool = False
    compiled: bool = False
    compiled_launches: Any = COMPILED_LAUNCHES
    loss: str | None = None
    optimizer_fused: bool = True
    collective_launches: Any = COLLECTIVE_LAUNCHES
    recompute: str = "none"
    recompute_every: int = 1
    early_stop: bool = False
    offload: Any = 0.0
    imbalance: Any = IMBALANCE
    fragmentation: Any = FRAGMENTATION

    def __post_init__(self) -> None:
        check_ranges(self)
        kinds = ("unfused", *FLASH)
        for name, known in (
            ("attention", kinds),
            ("recompute", RECOMPUTE),
            ("loss", (None, *LOSSES)),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} is one of {', '.join(map(repr, known))}; got {getattr(self, name)!r}"
                )
        for name, least in (
            ("offload", 0), ("collective_launches", 0), ("fragmentation", 0), ("imbalance", 1),
        ):  # fmt: skip
            for value in ends(getattr(self, name)):
                if not value >= least:
                    raise ValueError(f"{name} is {least} or more; got {value}")
        for value in ends(self.attention_achieved):
            if not value > 0:
                raise ValueError(f"attention_achieved is above 0; got {value}")
        for value in ends(self.compiled_launches):
            if not 0 <= value <= 1:
                raise ValueError(f"compiled_launches is between 0 and 1; got {value}")
        if isinstance(self.offload, Range) and not self.offload.low:
            raise ValueError(
                f"offload is a range of rates above 0, or 0 alone (none); got {self.offload}"
            )
        if self.attention_share is not None and self.attention == "unfused":
            raise ValueError("attention_share is of fused kernels; got attention='unfused'")
        if self.attention_share is not None and len(self.attention_share) != 2:
            raise ValueError(
                f"attention_share is two parts, forward and backward; got {self.attention_share}"
            )
        for each in self.attention_share or ():
            if not 0 < each <= 1:
                raise ValueError(f"attention_share is above 0 and at most 1; got {each}")
        if self.recompute_every < 1:
            raise ValueError(f"recompute_every is at least 1 layer; got {self.recompute_every}")
        if self.recompute_every > 1 and self.recompute != "full":
            raise ValueError(
                f"recompute_every({self.recompute_every}) is of recompute='full'; got {self.recompute!r}"
            )

    def flash_share(self, like: str, head: int = 128) -> tuple[float, float]:
        """Part of the peak, forward and backward, on this kind of card. ValueError where there is no such kernel."""
        if self.attention == "unfused":
            return 1.0, 1.0
        if self.attention_share is not None:
            return self.attention_share
        kind = "H100" if like == "H200" else like
        if kind not in FLASH[self.attention]:
            cards = ", ".join(FLASH[self.attention])
            raise ValueError(
                f"{self.attention} has figures on {cards}, not on {like}: another one, or say attention_share"
            )
        forward, backward = FLASH[self.attention][kind]
        part = self.attention_achieved * (NARROW[self.attention] if head <= 64 else 1.0)
        return forward * part, backward * part

    @property
    def again(self) -> float:
        """The part of the layers whose forward pass is run twice."""
        return 1 / self.recompute_every if self.recompute == "full" else 0.0

    @property
    def twice(self) -> tuple[float, float]:
        """The parts of the blocks' products, and of attention's core, that are run twice."""
        return {
            "none": (0.0, 0.0),
            "selective": (0.0, 1.0),
            "ops": (0.5, 0.0),
            "full": (self.again, self.again),
        }[self.recompute]


@dataclass(frozen=True)
class Precision:
    """states:  a row of simulator.states.PRECISIONS: bytes of parameters, gradients, master copies and moments
    compute:    bytes of a number in matrix products; None: as `states` has it
    gather:     bytes of a parameter when sharded ones are gathered; None: as in products
    reduce:     bytes of a gradient when gradients are averaged; None: as `states` keeps gradients
    accumulate: bytes of the gradient that micro-batches are added to; None: the same
    tf32:       float32 is multiplied in TF32 (PyTorch's default is not to)
    optimizer:  "adam", "momentum" or "sgd"
    eight_bit:  the linear layers of blocks multiply 8-bit floats
    gather_8bit: their weights are gathered in 8 bits (stage 3); all others as `gather` says
    """

    states: str = "bf16 + master"
    compute: int | None = None
    gather: int | None = None
    reduce: int | None = None
    accumulate: int | None = None
    tf32: bool = False
    optimizer: str = "adam"
    eight_bit: bool = False
    gather_8bit: bool = False

    def __post_init__(self) -> None:
        check_ranges(self)
        row = precision_named(self.states)
        defaults = {
            "compute": row.products,
            "gather": self.compute or row.products,
            "reduce": row.gradients,
            "accumulate": row.gradients,
        }
        for name, nbytes in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, nbytes)
            elif getattr(self, name) not in (1, 2, 4, 8):
                raise ValueError(f"{name} is 1, 2, 4 or 8 bytes; got {getattr(self, name)}")
        if self.compute not in (2, 4):
            raise ValueError(f"compute is 2 or 4 bytes (eight_bit is beside 2); got {self.compute}")
        if self.compute == 4 and self.eight_bit:
            raise ValueError("eight_bit is for layers beside 16-bit ones; got compute=4 bytes")
        if self.tf32 and self.compute != 4:
            raise ValueError(f"tf32 is of 32-bit products; got compute={self.compute} bytes")
        if self.gather_8bit and not self.eight_bit:
            raise ValueError(
                "gather_8bit is of eight_bit: nothing else multiplies what comes in 8 bits"
            )
        if self.optimizer not in OPTIMIZERS:
            raise ValueError(
                f"no optimizer {self.optimizer!r}; there are {', '.join(map(repr, OPTIMIZERS))}"
            )
