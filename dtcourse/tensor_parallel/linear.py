"""Linear layers cut by columns or by rows of the mathematics' W in y = x W, and what the two cost in messages.

    column-parallel   each rank has some of the outputs:  y_r = x W_r       x replicated, y cut
    row-parallel      each rank has some of the inputs:   y = sum_r x_r W_r x cut, y replicated

A column-parallel layer, anything elementwise, and a row-parallel one make a *parallel region*: one all-reduce forward
(the sum above) and one backward (the gradient of x, a sum over all ranks' outputs). Source: Megatron-LM, Shoeybi et al.
1909.08053, section 3. torch's nn.Linear holds W transposed, (out, in): columns are its dim 0.

The backward all-reduce travels while the weights' gradients are computed, which do not need it. Layers of one input
(query, key and value; both halves of SwiGLU) share it: `SharedInput`.

Per rank of p, for x of N tokens and d numbers: weights in out / p; each all-reduce sends 2 (p - 1)/p N d (ring).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dtcourse.parameters.cuts import Sliced
from dtcourse.parameters.replicas import Group
from dtcourse.tensor_parallel import mappings
from dtcourse.tensor_parallel.shards import Sharded, require_divides
from dtcourse.torch_private import version_of


class ColumnParallelLinear(Sharded):
    """Cuts the outputs of `linear` over the ranks. x (..., in), the same on all ranks -> (..., out / p)

    linear:        the whole layer, the same on every rank; a slice of it is kept, so a rank starts with the very
                   numbers that the unsharded layer has
    gather_output: all ranks get all outputs (one all-gather more)
    copies:        neighbouring ranks that hold the same outputs; replicas: the group of those that hold this rank's.
                   Their weights' gradients are summed, since each sees only its own use of them

    Outputs that do not divide are padded to equal slices; the padding takes no part, and the last rank has fewer.
    """

    def __init__(
        self,
        linear: nn.Linear,
        group: Group = None,
        gather_output: bool = False,
        copies: int = 1,
        replicas: Group = None,
    ) -> None:
        super().__init__()
        self.group, self.gather_output = group, gather_output
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.shard = Sliced(0, linear.out_features, group, copies)
        self.replicas = replicas if copies > 1 else None
        self.weight = self.held("weight", linear.weight, self.shard)
        has_bias = linear.bias is not None
        self.bias = self.held("bias", linear.bias, self.shard) if has_bias else None
        self.shared_input: SharedInput | None = None  # set where another layer reads the same input

    def forward(self, x: Tensor) -> Tensor:
        if self.shared_input is not None:
            y = self.shared_input(self, x)
        else:
            (y,) = column_linear(x, [self], self.group)
        if not self.gather_output:
            return y
        y = mappings.gather(F.pad(y, (0, self.shard.length - self.shard.used)), -1, self.group)
        return y[..., : self.out_features]

    def parameters_used(self) -> tuple[Tensor, Tensor | None]:
        """Weight and bias without padding, on their way to the other ranks that hold the same, where there are any."""
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if self.shard.used < self.shard.length:
            weight = weight[: self.shard.used]
            bias = None if bias is None else bias[: self.shard.used]
        if self.replicas is not None:
            weight = mappings.copy(weight, self.replicas)
            bias = None if bias is None else mappings.copy(bias, self.replicas)
        return weight, bias

    def extra_repr(self) -> str:
        mine = f"{self.shard.used} of {self.out_features}"
        return f"in_features={self.in_features}, out_features={mine}, bias={self.bias is not None}"


class RowParallelLinear(Sharded):
    """Cuts the inputs of `linear` over the ranks. x (..., in / p) -> (..., out), the same on all ranks

    linear:            as ColumnParallelLinear's
    input_is_parallel: False: x is replicated, (..., in), and each rank takes its slice of it first

    The bias is whole on every rank and added after the sum: added before it, it would count p times.
    """

    def __init__(
        self, linear: nn.Linear, group: Group = None, input_is_parallel: bool = True
    ) -> None:
        super().__init__()
        size = dist.get_world_size(group)
        require_divides(linear.in_features, size, "the inputs of a row-parallel layer")
        self.group, self.input_is_parallel = group, input_is_parallel
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = self.held("weight", linear.weight, Sliced(1, linear.in_features, group))
        self.bias = linear.bias

    def forward(self, x: Tensor) -> Tensor:
        if not self.input_is_parallel:
            x = mappings.scatter(x, -1, self.group)
        y = mappings.reduce(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias.to(y.dtype)  # autocast makes y narrower

    def extra_repr(self) -> str:
        mine = f"{self.weight.shape[1]} of {self.in_features}"
        return f"in_features={mine}, out_features={self.out_features}, bias={self.bias is not None}"


class SharedInput:
    """Column-parallel layers that read the same tensor: multiplied together, so that its gradient is one all-reduce.

    The module that calls them one after the other stays as it is. The first call computes all outputs, and each layer
    takes its own; a layer that is asked for another input than the first one was, or twice, computes them again.
    """

    def __init__(self, layers: Sequence[ColumnParallelLinear]) -> None:
        self.layers = list(layers)
        for layer in self.layers:
            layer.shared_input = self
        self._input: tuple[Tensor, int] | None = None
        self._ready: dict[ColumnParallelLinear, Tensor] = {}

    def __call__(self, layer: ColumnParallelLinear, x: Tensor) -> Tensor:
        known = self._input is not None and self._input[0] is x and self._input[1] == version_of(x)
        if not known or layer not in self._ready:
            self._ready = dict(zip(self.layers, self.outputs(x), strict=True))
            self._input = x, version_of(x)
        y = self._ready.pop(layer)
        if not self._ready:
            self._input = None  # nothing of this step stays alive
        return y

    def outputs(self, x: Tensor) -> tuple[Tensor, ...]:
        """Each layer's. What a cut input needs first is another method in its place: sequence_parallel/megatron.py."""
        return column_linear(x, self.layers, self.layers[0].group)


def column_linear(
    x: Tensor, layers: Sequence[ColumnParallelLinear], group: Group
) -> tuple[Tensor, ...]:
    """x (..., in), the same on all ranks, through each layer: a tuple of (..., this rank's outputs).

    All ranks of the group take part in backward, and x's gradient is whole on every one.
    """
    used = [layer.parameters_used() for layer in layers]
    tensors = as_autocast(x, *(weight for weight, _ in used), *(bias for _, bias in used))
    return _ColumnLinear.apply(group, *tensors)


def as_autocast(x: Tensor, *others: Any) -> list[Any]:
    """All of them in autocast's dtype where it is on, since a Function of our own has to cast for itself."""
    tensors = [x, *others]
    if not torch.is_autocast_enabled(x.device.type):
        return tensors
    low = torch.get_autocast_dtype(x.device.type)
    return [t if t is None else t.to(low) for t in tensors]


class _ColumnLinear(torch.autograd.Function):
    """apply(group, x, weights..., biases...): x W_i + b_i for each i. A bias may be None."""

    @staticmethod
    def forward(ctx: Any, group: Group, x: Tensor, *parameters: Any) -> tuple[Tensor, ...]:
        weights = parameters[: len(parameters) // 2]
        biases = parameters[len(weights) :]
        ctx.group = group
        ctx.save_for_backward(x, *weights)
        return tuple(F.linear(x, w, b) for w, b in zip(weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        _, needs_x, *needs = ctx.needs_input_grad
        x_rows = x.reshape(-1, x.shape[-1])
        # A rank whose slice is all padding has rows without numbers, of which -1 cannot tell how many.
        rows = [g.reshape(len(x_rows), g.shape[-1]) for g in grads]
        grad_x, work = None, None
        if needs_x:
            grad_x = rows[0] @ weights[0]
            for g, w in zip(rows[1:], weights[1:], strict=True):
                grad_x.addmm_(g, w)
            if dist.get_world_size(ctx.group) > 1:
                work = dist.all_reduce(grad_x, group=ctx.group, async_op=True)
        # While that is on its way:
        needs_weight, needs_bias = needs[: len(weights)], needs[len(weights) :]
        grad_weights = [
            g.T @ x_rows if n else None for g, n in zip(rows, needs_weight, strict=True)
        ]
        grad_biases = [g.sum(0) if n else None for g, n in zip(rows, needs_bias, strict=True)]
        if work is not None:
            work.wait()
        return (
            None,
            None if grad_x is None else grad_x.view(x.shape),
            *grad_weights,
            *grad_biases,
        )
