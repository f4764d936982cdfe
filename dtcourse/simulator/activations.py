"""Bytes of a Transformer's activations, tensor by tensor: what its forward pass keeps for its backward pass.

Counted for dtcourse.models.Transformer from what each operator's backward formula needs. For N = B S tokens a block
keeps 8 N D + 2 N F + B H S^2 numbers (and the norms' statistics): with F = 4 D and 2 bytes that is the 32 s b h + 2 a
s^2 b of Korthikanti et al. 2205.05198, equation 1, without its dropout masks (34 s b h + 5 a s^2 b with them).

    attention   "plain" keeps all B H S^2 probabilities; "efficient" (a fused kernel) one number a query instead
    checkpoint  "none"; "selective": the attention core is computed again, so the S^2 terms go; "full": whole blocks are
                computed again, and only each block's input is kept

Tests hold every row against what autograd saves, to the byte. Letters: B batch, S sequence, D d_model, F d_ff, H heads,
V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from dtcourse import device
from dtcourse.simulator.states import Precision, precision_named

ATTENTION = ("plain", "efficient")
CHECKPOINTING = ("none", "selective", "full")


class Shape(Protocol):
    """What is asked of a model's configuration; dtcourse.models.TransformerConfig has it."""

    @property
    def vocab(self) -> int: ...
    @property
    def d_model(self) -> int: ...
    @property
    def n_layers(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def d_head(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def ff(self) -> int: ...
    @property
    def dropout(self) -> float: ...


@dataclass(frozen=True)
class Kept:
    """One tensor that a block, or the model around the blocks, keeps."""

    name: str
    numbers: int
    bytes_each: int

    @property
    def bytes(self) -> int:
        return self.numbers * self.bytes_each


def block(
    shape: Shape,
    batch: int,
    sequence: int,
    *,
    precision: str = "fp32",
    attention: str = "plain",
    checkpointing: str = "none",
    on: str | None = None,
) -> list[Kept]:
    """What one block keeps, in the order in which its forward pass makes it.

    on: the kind of device (default: this machine's): a GPU's dropout keeps a byte an element, a CPU's a number, and
    autocast computes softmax in float32 on a GPU alone
    """
    _counted(shape)
    p, gpu = _checked(batch, sequence, precision, attention, checkpointing, on)
    B, S, D, F, H = batch, sequence, shape.d_model, shape.ff, shape.n_heads
    N, kv = B * S, shape.kv_heads * shape.d_head
    x = Kept("input of the block (norm 1's input)", N * D, p.stream)
    if checkpointing == "full":
        return [x]
    efficient = attention == "efficient"
    # A plain core repeats grouped keys and values for each query head;
    # a fused or a checkpointed one keeps them as they are.
    kv_kept = kv if efficient or checkpointing == "selective" else D
    rows = [
        x,
        Kept("norm 1's mean and scale", 2 * N, p.stream),
        Kept("input of query, key and value", N * D * (3 if p.casts else 1), p.products),
        Kept("queries", N * D, p.products),
        Kept("keys", N * kv_kept, p.products),
        Kept("values", N * kv_kept, p.products),
    ]
    if checkpointing == "none" and efficient:
        rows.append(Kept("log-sum-exp of each query", N * H, 4))
    elif checkpointing == "none":
        rows.append(Kept("causal mask", S * S, 1))
        wide = p.casts and gpu  # softmax in float32, and its copy for the product with the values
        rows.append(Kept("attention probabilities", B * H * S * S, 4 if wide else p.products))
        if wide:
            rows.append(Kept("attention probabilities, cast", B * H * S * S, p.products))
    rows += [
        Kept("input of the output layer", N * D, p.products),
        Kept("norm 2's input", N * D, p.stream),
        Kept("norm 2's mean and scale", 2 * N, p.stream),
        Kept("input of the MLP", N * D, p.products),
        Kept("GELU's input", N * F, p.products),
        Kept("GELU's output", N * F, p.products),
    ]
    if shape.dropout:
        rows.append(Kept("two dropout masks", 2 * N * D, 1 if gpu else p.products))
    return rows + _cast_weights(shape, p)


def around(
    shape: Shape, batch: int, sequence: int, *, precision: str = "fp32", on: str | None = None
) -> list[Kept]:
    """What the model keeps outside its blocks: embeddings, the last norm, the output layer and the loss."""
    p, gpu = _checked(batch, sequence, precision, "plain", "none", on)
    N, D, V = batch * sequence, shape.d_model, shape.vocab
    rows = [
        Kept("positions", sequence, 8),
        Kept("last norm's input", N * D, p.stream),
        Kept("last norm's mean and scale", 2 * N, p.stream),
        Kept("input of the output layer", N * D, p.products),
        Kept("logarithms of the probabilities", N * V, p.stream),
        Kept("the loss, its weight, the 1 that its gradient starts from", 3, p.stream),
    ]
    if shape.dropout:
        rows.append(Kept("dropout mask", N * D, 1 if gpu else p.stream))
    if p.casts:
        rows.append(Kept("cast weights", V * D, p.products))
    return rows


def activation_bytes(
    shape: Shape,
    batch: int,
    sequence: int,
    *,
    precision: str = "fp32",
    attention: str = "plain",
    checkpointing: str = "none",
    on: str | None = None,
) -> int:
    """Bytes that the forward pass of the whole model keeps for its backward pass."""
    each = block(
        shape, batch, sequence, precision=precision, attention=attention,
        checkpointing=checkpointing, on=on,
    )  # fmt: skip
    outside = around(shape, batch, sequence, precision=precision, on=on)
    return shape.n_layers * sum(k.bytes for k in each) + sum(k.bytes for k in outside)


def working_bytes(
    shape: Shape,
    batch: int,
    sequence: int,
    *,
    precision: str = "fp32",
    attention: str = "plain",
    checkpointing: str = "none",
    on: str | None = None,
) -> int:
    """Bytes beyond the activations at the backward pass's worst moment.

    It is one of three: the loss's backward pass, with gradients of the logits and of their logarithms; the last
    block's MLP; or its attention, with gradients of scores and probabilities. The last two come when the output
    layer's activations are free again, and with checkpointing they hold all that the block has just recomputed.
    """
    p, _ = _checked(batch, sequence, precision, attention, checkpointing, on)
    options: dict[str, Any] = {"precision": precision, "on": on}
    N, D = batch * sequence, shape.d_model
    kept = {
        c: sum(
            k.bytes
            for k in block(shape, batch, sequence, attention=attention, checkpointing=c, **options)
        )
        for c in {"none", checkpointing}
    }
    again = kept["none"] - kept[checkpointing]
    free = sum(k.bytes for k in around(shape, batch, sequence, **options))
    probabilities = 0 if attention == "efficient" else batch * shape.n_heads * sequence**2
    mlp_kept = (2 * N * shape.ff + N * D) * p.products
    loss = 2 * N * shape.vocab * p.stream
    if p.casts:  # at the end of the forward pass: two forms of the logits, and autocast's cache of cast weights
        weights = sum(k.bytes for k in _cast_weights(shape, p)) if checkpointing == "full" else 0
        loss = max(loss, N * shape.vocab * (p.products + p.stream) + shape.n_layers * weights)
    # Selective recompute needs its block's probabilities when it comes to attention, not before.
    mlp = (again if checkpointing == "full" else 0) + (N * shape.ff + 2 * N * D) * p.products - free
    core = again - mlp_kept + (2 * probabilities + 4 * N * D) * p.products - free
    return max(loss, mlp, core)


def _cast_weights(shape: Shape, p: Precision) -> list[Kept]:
    D, kv = shape.d_model, shape.kv_heads * shape.d_head
    numbers = 2 * D * D + 2 * D * kv + 2 * D * shape.ff
    return [Kept("cast weights", numbers, p.products)] if p.casts else []


def _counted(shape: Shape) -> None:
    gpt2 = {"positions": "learned", "norm": "layer", "mlp": "gelu", "experts": 0}
    for name, counted in gpt2.items():
        if getattr(shape, name, counted) != counted:
            raise ValueError(
                f"the activations of a Transformer with {name}={getattr(shape, name)!r} "
                f"have no formula here (only those with {counted!r} have): trace the model with "
                "dtcourse.simulator.tracing"
            )


def _checked(
    batch: int, sequence: int, precision: str, attention: str, checkpointing: str, on: str | None
) -> tuple[Precision, bool]:
    for name, count in (("batch", batch), ("sequence", sequence)):
        if count < 1:
            raise ValueError(f"{name} is at least 1; got {count}")
    for name, value, known in (
        ("attention", attention, ATTENTION),
        ("checkpointing", checkpointing, CHECKPOINTING),
    ):
        if value not in known:
            raise ValueError(f"{name} is one of {', '.join(map(repr, known))}; got {value!r}")
    return precision_named(precision), device.is_gpu(on or device.available())
