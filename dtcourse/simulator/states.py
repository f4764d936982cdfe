"""Bytes of the model states: parameters, gradients and what the optimizer keeps, for each precision and ZeRO stage.

With Psi parameters, mixed-precision Adam holds 2 Psi of half-precision weights, 2 Psi of gradients and K Psi for the
optimizer, K = 12: float32 master weights, momentum and variance (Micikevicius et al. 1710.03740; the count is ZeRO's
section 3.1). ZeRO (Rajbhandari et al. 1910.02054, section 5) cuts them over N data-parallel ranks, one kind a stage:

    stage 0   2 Psi + 2 Psi + K Psi         stage 2   2 Psi + (2 + K) Psi / N
    stage 1   2 Psi + 2 Psi + K Psi / N     stage 3   (2 + 2 + K) Psi / N

Every rank holds a shard of the same size, ceil(Psi / N) elements, so the last one may be padding.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Precision:
    """Bytes of one number of each kind.

    parameters, gradients: the weights that the forward pass reads, and their gradients
    master: the optimizer's own float32 copy of each weight; 0 where it updates the weights themselves
    moments: each number that the optimizer keeps beside a weight
    stream: activations between layers: residual stream, inputs of norms and of the loss
    products: what matrix products read, and keep for their backward pass
    casts: torch.autocast casts: a copy of each weight, and of a layer's input for every layer that reads it
    """

    parameters: int
    gradients: int
    master: int
    moments: int
    stream: int
    products: int
    casts: bool = False


PRECISIONS: dict[str, Precision] = {
    "fp32": Precision(4, 4, 0, 4, 4, 4),
    "bf16 autocast": Precision(4, 4, 0, 4, 4, 2, casts=True),
    "bf16 + master": Precision(2, 2, 4, 4, 2, 2),
    "fp16 + master": Precision(2, 2, 4, 4, 2, 2),
    "bf16 only": Precision(2, 2, 0, 2, 2, 2),
}
""""... + master" is the mixed precision of ZeRO's and Megatron's papers: half-precision weights, float32 copies in the
optimizer. "bf16 autocast" is torch.autocast over float32 weights. "bf16 only" has no float32 anywhere (and learns
badly)."""

OPTIMIZERS = {"sgd": 0, "momentum": 1, "adam": 2}
"""Numbers that an optimizer keeps beside each weight."""


def precision_named(name: str) -> Precision:
    """The row of PRECISIONS, or a ValueError that lists them."""
    if name not in PRECISIONS:
        raise ValueError(f"no precision {name!r}; there are {', '.join(map(repr, PRECISIONS))}")
    return PRECISIONS[name]


def optimizer_bytes(precision: str = "fp32", optimizer: str = "adam") -> int:
    """ZeRO's K: the optimizer's bytes for each parameter. 12 for mixed-precision Adam."""
    p = precision_named(precision)
    if optimizer not in OPTIMIZERS:
        raise ValueError(
            f"no optimizer {optimizer!r}; there are {', '.join(map(repr, OPTIMIZERS))}"
        )
    return p.master + p.moments * OPTIMIZERS[optimizer]


def model_states(
    parameters: int,
    *,
    precision: str = "fp32",
    optimizer: str = "adam",
    stage: int = 0,
    ranks: int = 1,
    trainable: int | None = None,
) -> dict[str, int]:
    """Bytes that each rank holds between two steps.

    parameters: how many the model has (Psi); a tied one counts once
    precision, optimizer: names in PRECISIONS and OPTIMIZERS
    stage, ranks: ZeRO's stage 0 to 3 over that many data-parallel ranks; stage 0 is DDP
    trainable: how many of the parameters have gradients; default all
    returns: {"parameters": ..., "gradients": ..., "optimizer states": ...}
    source: the formulas above; with 7.5, 128 and 1000 billion parameters they are table 1 of 1910.02054

    Left out: the step count that PyTorch's Adam keeps for each tensor (4 bytes).
    """
    trainable = parameters if trainable is None else trainable
    if not 0 <= trainable <= parameters or parameters < 1:
        raise ValueError(
            f"parameters is at least 1 and trainable between 0 and that; got {parameters} and {trainable}"
        )
    if stage not in (0, 1, 2, 3):
        raise ValueError(f"ZeRO has the stages 0 (none), 1, 2 and 3; got {stage}")
    if ranks < 1:
        raise ValueError(f"ranks is at least 1; got {ranks}")
    p, k = precision_named(precision), optimizer_bytes(precision, optimizer)

    def share(elements: int, from_stage: int) -> int:
        return -(-elements // ranks) if stage >= from_stage else elements

    return {
        "parameters": p.parameters * share(parameters, 3),
        "gradients": p.gradients * share(trainable, 2),
        "optimizer states": k * share(trainable, 1),
    }
