"""Megatron's sequence parallelism: what tensor parallelism leaves whole on every rank,
each rank does for its tokens alone.

1. Tensor parallelism cuts attention and MLP; norms, dropouts and residuals are done alike on all t ranks, and kept t
   times.
2. They work token by token. So outside the parallel regions each rank has S/t of the tokens, and of the activations.
3. An all-reduce is a reduce-scatter and an all-gather. The sum at a region's end stops after the first half, and the
   second one is made up for at the next region's beginning: the same bytes.
4. A layer that begins a region keeps its own tokens only, and gathers all of them again in backward for its weights.
5. Cut by tokens, products and messages can go rank by rank beside each other: overlap=True, asynchronous tensor
   parallelism (tensor_parallel/overlapped.py).

The two halves and their backward are in tensor_parallel/mappings.py; where the activations become cut is embedding.py.

Source: Korthikanti et al. 2205.05198, section 4.2.

Per rank and layer, in units of (t - 1)/t n, n being the bytes of s b h activations: two regions, each a gather and a
sum each way, so 8, as tensor parallelism's four all-reduces; step 4 adds two gathers: 10. gather_again=False keeps what
was gathered: 8, and two tensors of s b h more alive. Kept are 34/t s b h bytes and the attention core, instead of 10 s
b h + 24/t s b h: at two bytes a number and one for a dropout's mask, 18/t numbers instead of 6 + 12/t.
Norms and the biases after the sums see a part of the tokens: their gradients are summed over the ranks, h numbers each,
in every backward; or once for several (parameters/partial_gradients.py), as a pipeline does in a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh

from dtcourse.parameters.kept_placements import keep
from dtcourse.parameters.partial_gradients import sum_gradients
from dtcourse.parameters.replicas import Group
from dtcourse.sequence_parallel.embedding import cut_embeddings, sum_cut
from dtcourse.sequence_parallel.order import DIM
from dtcourse.tensor_parallel.linear import (
    ColumnParallelLinear,
    RowParallelLinear,
    SharedInput,
    as_autocast,
)
from dtcourse.tensor_parallel.mappings import start_gather, start_sum
from dtcourse.tensor_parallel.overlapped import gather_linear, linear_sum
from dtcourse.tensor_parallel.random_state import SplitDropout
from dtcourse.tensor_parallel.shards import Sharded


def parallelize_sequence(
    model: nn.Module, mesh: DeviceMesh, *, gather_again: bool = True, overlap: bool = False
) -> nn.Module:
    """Cuts what is between the parallel regions of a Transformer along its tokens, in place, and returns it.

    model: the course's, after `tensor_parallel.parallelize(model, transformer_plan(model), mesh)`
    mesh:  the same axis as there
    gather_again: False: what was gathered is kept for backward, 8 units of messages for 10, and more memory
    overlap: each gather and each sum beside its products, rank by rank (tensor_parallel/overlapped.py): the same bytes

    Tokens, positions and loss are as before, the same on all ranks.
    A forward whose tokens do not divide is a ValueError.
    """
    blocks, group = cut_blocks(model), mesh.get_group()
    if mesh.size() == 1:
        return model
    whole: Any = model
    # From the embeddings on, a rank has its own tokens; in front of the output layer they come together.
    cut_embeddings(whole, group)
    GatheredInput([whole.output], gather_again, overlap)
    on_own_tokens = [*whole.norm.parameters()]
    for block in blocks:
        attention, mlp = block.attention, block.mlp
        GatheredInput([attention.query, attention.key, attention.value], gather_again, overlap)
        up = [getattr(mlp, name) for name in ("gate", "up") if hasattr(mlp, name)]
        GatheredInput(up, gather_again, overlap)
        attention.output = CutRowLinear(attention.output, overlap)
        mlp.down = CutRowLinear(mlp.down, overlap)
        block.dropout = SplitDropout(block.dropout, group)
        on_own_tokens += [*block.norm_1.parameters(), *block.norm_2.parameters()]
        on_own_tokens += [
            bias for bias in (attention.output.bias, mlp.down.bias) if bias is not None
        ]
    sum_gradients(on_own_tokens, group, of=model)
    keep(model)
    return model


# --- where a parallel region begins ------------------------------------------------------------------------------


class GatheredInput(SharedInput):
    """Column-parallel layers that read the same tokens, of which each rank brings its own:
    one gather for all of them.
    """

    def __init__(
        self, layers: Sequence[ColumnParallelLinear], gather_again: bool, overlap: bool
    ) -> None:
        super().__init__(layers)
        self.gather_again, self.overlap = gather_again, overlap

    def outputs(self, x: Tensor) -> tuple[Tensor, ...]:
        """x (B, S/t, in) -> each layer's (B, S, this rank's outputs)."""
        used = [layer.parameters_used() for layer in self.layers]
        x, *both = as_autocast(x, *(weight for weight, _ in used), *(bias for _, bias in used))
        group = self.layers[0].group
        if not self.overlap:
            return _GatheredLinear.apply(group, self.gather_again, x, *both)
        weights, biases = both[: len(used)], both[len(used) :]
        first = x.movedim(DIM, 0)
        outputs = gather_linear(first, weights, biases, group, gather_again=self.gather_again)
        return tuple(y.movedim(0, DIM) for y in outputs)


class _GatheredLinear(torch.autograd.Function):
    """apply(group, gather_again, x, weights..., biases...): x W_i + b_i of all ranks' tokens. A bias may be None."""

    @staticmethod
    def forward(
        ctx: Any, group: Group, gather_again: bool, x: Tensor, *parameters: Any
    ) -> tuple[Tensor, ...]:
        weights = parameters[: len(parameters) // 2]
        biases = parameters[len(weights) :]
        everyones, _ = start_gather(x, DIM, group)  # (S, B, in)
        ctx.rest = group, gather_again
        ctx.save_for_backward(x if gather_again else everyones, *weights)
        both = zip(weights, biases, strict=True)
        return tuple(F.linear(everyones.movedim(0, DIM), w, b) for w, b in both)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x, *weights), (group, gather_again) = ctx.saved_tensors, ctx.rest
        *_, needs_x = ctx.needs_input_grad[:3]
        needs = ctx.needs_input_grad[3:]
        # 1. The tokens are on their way while the gradient of the input is computed, which does not need them ...
        gathering = None
        if gather_again:
            x, gathering = start_gather(x, DIM, group, async_op=True)
        tokens, batch = grads[0].shape[DIM], grads[0].shape[0]
        rows = [g.movedim(DIM, 0).reshape(tokens * batch, g.shape[-1]) for g in grads]
        grad_x, summing = None, None
        if needs_x:
            total = rows[0] @ weights[0]
            for g, w in zip(rows[1:], weights[1:], strict=True):
                total.addmm_(g, w)
            # 2. ... and that gradient is, while those of the weights are computed.
            grad_x, summing = start_sum(total.unflatten(0, (tokens, batch)), group, async_op=True)
        if gathering is not None:
            gathering.wait()
        x_rows = x.flatten(0, 1)
        both = zip(rows, needs[: len(weights)], strict=True)
        grad_weights = [g.T @ x_rows if n else None for g, n in both]
        both = zip(rows, needs[len(weights) :], strict=True)
        grad_biases = [g.sum(0) if n else None for g, n in both]
        if summing is not None:
            summing.wait()
        own = None if grad_x is None else grad_x.movedim(0, DIM)
        return None, None, own, *grad_weights, *grad_biases


# --- where it ends, and between regions --------------------------------------------------------------------------


class CutRowLinear(Sharded):
    """A row-parallel layer whose sum goes to the ranks by tokens: (B, S, in / t) -> (B, S/t, out).
    Parameters as `row`'s.
    """

    def __init__(self, row: RowParallelLinear, overlap: bool) -> None:
        super().__init__()
        self.group, self.shards, self.overlap = row.group, row.shards, overlap
        self.in_features, self.out_features = row.in_features, row.out_features
        self.weight, self.bias = row.weight, row.bias

    def forward(self, x: Tensor) -> Tensor:
        if self.overlap:
            x, weight = as_autocast(x, self.weight)
            y = linear_sum(x.movedim(DIM, 0), weight, self.group).movedim(0, DIM)
        else:
            y = sum_cut(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias.to(y.dtype)


def cut_blocks(model: nn.Module) -> list[Any]:
    """The model's blocks; ValueError unless tensor parallelism has cut them and the output layer."""
    whole: Any = model
    for number, block in enumerate(getattr(whole, "blocks", ())):
        if hasattr(block.mlp, "experts"):  # a SwiGLU has a gate as well
            raise ValueError(
                f"blocks.{number}.mlp is a mixture of experts: with its sequence cut each rank's gate would choose for "
                "the rank's own tokens, and its gradient is not summed. Leave the sequence whole, or divide the batch "
                "over the axis of expert_parallel"
            )
    for name, kind in (
        ("blocks.0.attention.query", ColumnParallelLinear),
        ("blocks.0.attention.output", RowParallelLinear),
        ("blocks.0.mlp.down", RowParallelLinear),
        ("output", ColumnParallelLinear),
    ):
        try:
            found = type(model.get_submodule(name))
        except AttributeError:
            raise ValueError(
                f"this is for the course's Transformer; the model has no {name}"
            ) from None
        if found is not kind:
            raise ValueError(
                f"{name} is a {found.__name__}, where a {kind.__name__} is expected: first cut the model with "
                "tensor_parallel.parallelize(model, transformer_plan(model), mesh), and then, once, its sequence"
            )
    return [*whole.blocks]
