"""Will it fit? One plan of a training step's memory, from a model's shape and a configuration,
before anything is built.

    plan(transformer_parameters(config), config, precision="bf16 + master", stage=2, ranks=8, batch=4,
         capacity=device_memory()["H100 SXM, 80 GB"])

adds up the model states (dtcourse.simulator.states: ZeRO's formulas), the activations and the working memory of the
backward pass (dtcourse.simulator.activations). It counts gradients as alive all through the step, as they are under
gradient accumulation and in DDP's buckets; a lone process that sets them to None is below it by up to the gradients'
bytes. Not in it: the accelerator's context, the libraries' workspaces and the allocator's fragmentation, which no
formula knows: leave a tenth of the device for them. For a model that is not a Transformer: dtcourse.simulator.tracing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dtcourse.simulator.activations import Shape, activation_bytes, working_bytes
from dtcourse.simulator.hardware import published
from dtcourse.simulator.states import (
    OPTIMIZERS,
    PRECISIONS,
    model_states,
    optimizer_bytes,
    precision_named,
)

__all__ = [
    "OPTIMIZERS",
    "PRECISIONS",
    "Plan",
    "device_memory",
    "largest_batch",
    "model_states",
    "optimizer_bytes",
    "plan",
]


@dataclass(frozen=True)
class Plan:
    """Bytes on one rank, by category, against what its device holds.

    bytes: {"parameters", "gradients", "optimizer states", "activations", "other"}; "other" is working memory
    capacity: the device's bytes; None if none was given
    """

    bytes: dict[str, int]
    capacity: float | None = None

    @property
    def states(self) -> int:
        """Parameters, gradients and optimizer states: what is there between two steps of gradient accumulation."""
        return sum(self.bytes[c] for c in ("parameters", "gradients", "optimizer states"))

    @property
    def total(self) -> int:
        """All of it: the peak of a step."""
        return sum(self.bytes.values())

    @property
    def spare(self) -> float:
        """What the device has left; negative: what it lacks."""
        if self.capacity is None:
            raise ValueError("this plan was made without a capacity: plan(..., capacity=bytes)")
        return self.capacity - self.total

    @property
    def fits(self) -> bool:
        """Whether the device holds it."""
        return self.spare >= 0

    def __str__(self) -> str:
        need = f"{self.total / 2**30:,.1f}"
        if self.capacity is None:
            return f"{need} GiB"
        short = "fits" if self.fits else "does not fit"
        left = "to spare" if self.fits else "missing"
        have, rest = self.capacity / 2**30, abs(self.spare) / 2**30
        return f"{need} of {have:,.1f} GiB: {short}, {rest:,.1f} {left}"


def plan(
    parameters: int,
    shape: Shape | None = None,
    *,
    precision: str = "fp32",
    optimizer: str = "adam",
    stage: int = 0,
    ranks: int = 1,
    batch: int = 1,
    sequence: int | None = None,
    attention: str = "plain",
    checkpointing: str = "none",
    trainable: int | None = None,
    capacity: float | None = None,
    on: str | None = None,
) -> Plan:
    """Bytes that one rank needs at the peak of a training step.

    parameters: number of parameters of the whole model (dtcourse.models.transformer_parameters(config))
    shape: a TransformerConfig, for the activations; None counts the model states alone
    precision: one of PRECISIONS; optimizer: one of OPTIMIZERS
    stage, ranks: ZeRO's stage over that many data-parallel ranks
    batch, sequence: the micro-batch of one rank, and its length in tokens (default: the shape's max_length)
    attention: "plain" or "efficient"; checkpointing: "none", "selective" or "full"
    trainable: how many parameters have gradients (default all)
    capacity: bytes of the device
    on: kind of device, where its operators differ (default: this machine's)
    """
    bytes_ = model_states(
        parameters,
        precision=precision,
        optimizer=optimizer,
        stage=stage,
        ranks=ranks,
        trainable=trainable,
    )
    working = 0
    if shape is not None:
        length = sequence or getattr(shape, "max_length", 0)
        if not length:
            raise ValueError(
                "this shape has no max_length: say the sequence's length, sequence=..."
            )
        options: dict[str, Any] = {
            "precision": precision, "attention": attention, "checkpointing": checkpointing, "on": on,
        }  # fmt: skip
        bytes_["activations"] = activation_bytes(shape, batch, length, **options)
        working = working_bytes(shape, batch, length, **options)
        working += _gathered(parameters, shape, precision, stage, ranks)
    bytes_["other"] = working
    return Plan(bytes_, capacity)


def largest_batch(capacity: float, parameters: int, shape: Shape, **configuration: Any) -> int:
    """The largest micro-batch that `plan` says fits into `capacity` bytes; 0 if not even one sequence does."""

    def fits(batch: int) -> bool:
        return plan(parameters, shape, batch=batch, capacity=capacity, **configuration).fits

    if not fits(1):
        return 0
    high = 2
    while fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def device_memory() -> dict[str, float]:
    """Bytes of published accelerators, by name and makers' figure: {"H100 SXM, 80 GB": 85_520_809_984, ...}.

    Where device_memory.json has what nvidia-smi reports, it is that: of an H100 81,559 MiB, 79.6 GiB. What makers call
    80 GB is 80 GiB, less what the driver keeps. Of the others no report is known here, and a GB counts 1e9 bytes, which
    is at most 7 % too little. A process has less than either: CUDA's context takes some hundred MiB.
    """
    specs, reported = published("hw_specs"), published("device_memory")["reported_MiB"]
    return {
        f"{name.removesuffix(f' {size}')}, {size} GB": float(
            reported[name] * 2**20 if name in reported else size * 1e9
        )
        for name, (size, _) in specs["memory"].items()
    }


def _gathered(parameters: int, shape: Shape, precision: str, stage: int, ranks: int) -> int:
    """What ZeRO-3 has in whole beside its shards: the weights of two blocks (in use, and
    fetched ahead), one's gradients.

    Stage 2 has one block's gradients in whole, until they are reduced to their owners.
    """
    if ranks == 1 or stage < 2:
        return 0
    p = precision_named(precision)
    block = 2 * shape.d_model * (shape.d_model + shape.kv_heads * shape.d_head + shape.ff)
    return block * (p.gradients + (2 * p.parameters if stage == 3 else 0))
