"""What a step computes, counted operator by operator: FLOPs, bytes, and which of them a checkpoint repeats.

    counted = count(step)
    counted.model_flops, counted.flops       # for MFU, and for HFU; equal where nothing is computed twice

A mode of torch sees each operation below autograd, forward and backward, as those of dtcourse.emulation do. So what is
counted is what this rank runs, and it differs from torch.utils.flop_counter.FlopCounterMode in three places:

    attention     its table has no kernel of attention on a CPU, and takes them for nothing
    DTensor       it counts the operation on the whole tensor, which each rank runs on its shard only
    recomputing   it has one total. Here the repetitions are also counted apart: a model's FLOPs, by which MFU is
                  defined, are without them (PaLM, Chowdhery et al. 2204.02311, appendix B)

A checkpoint repeats its forward inside the backward pass, with gradients enabled, which a backward's own operations are
not; that is how they are told apart. A stage of a pipeline repeats its forward just before its backward, and says so
(`emulation.counting.repeating`). torch.utils.checkpoint stops a non-reentrant repetition once it has all that
backward asked for, so of two linear layers it repeats one (7 products, where a reentrant one takes 8): that is no
mistake of any counter, but of the rule that recomputing costs one more forward. A fused kernel of attention repeats,
in its backward, the scores: one product of five.

FLOPs are those of matrix products, convolutions and attention; bytes are what an operator would move with caches that
keep nothing (dtcourse.emulation.operations).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dtcourse import device, events, torch_private
from dtcourse.emulation import operations
from dtcourse.emulation.counting import EachOperation, repeated, without_memory


@dataclass(frozen=True)
class Operator:
    """All calls of one operator with tensors of the same shapes.

    name:       PyTorch's, without its overload: "aten.mm"
    shapes:     of the tensors that go in
    calls:      how many
    flops:      floating-point operations of all calls
    recomputed: those of them that were done before, in the forward
    bytes:      read and written by all calls
    seconds:    of all calls; 0 where they were not timed
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    calls: int = 0
    flops: int = 0
    recomputed: int = 0
    bytes: int = 0
    seconds: float = 0.0

    @property
    def intensity(self) -> float:
        """FLOPs per byte."""
        return self.flops / self.bytes if self.bytes else math.inf if self.flops else 0.0

    def __str__(self) -> str:
        return f"{self.name} {' '.join('x'.join(map(str, shape)) for shape in self.shapes)}".strip()


@dataclass(frozen=True)
class Counted:
    """What a rank has computed. `operators`: those with most FLOPs first, then those with most bytes."""

    operators: tuple[Operator, ...]

    @property
    def flops(self) -> int:
        """Executed: the "hardware FLOPs"."""
        return sum(operator.flops for operator in self.operators)

    @property
    def recomputed(self) -> int:
        """Executed a second time."""
        return sum(operator.recomputed for operator in self.operators)

    @property
    def model_flops(self) -> int:
        """What forward and backward need, each operation once."""
        return self.flops - self.recomputed

    @property
    def bytes(self) -> int:
        """Read and written."""
        return sum(operator.bytes for operator in self.operators)

    @property
    def seconds(self) -> float:
        """In operators; 0 where they were not timed."""
        return sum(operator.seconds for operator in self.operators)

    def of(self, name: str) -> Counted:
        """Only the operators of one name, such as "aten.mm"."""
        return Counted(tuple(each for each in self.operators if each.name == name))


class CountOperators(EachOperation):
    """A context: counts what the thread that enters it computes, and backward for it. `.counted` says what.

    timed: each call is timed too, by a look at the clock before and after it (on a GPU, each waits for the GPU).
    fakes: what is computed on fake tensors is counted as if they had memory: of a traced rank

    A backward with create_graph=True has gradients enabled throughout, so all of it would count as recomputed:
    its `flops` are right, its `model_flops` are not.
    """

    def __init__(self, *, timed: bool = False, fakes: bool = False) -> None:
        super().__init__()
        self._timed, self.sees_fakes = timed, fakes
        self._found: dict[Any, Operator] = {}

    @property
    def counted(self) -> Counted:
        """Until now."""
        ordered = sorted(self._found.values(), key=lambda each: (-each.flops, -each.bytes))
        return Counted(tuple(ordered))

    def ran(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        start = self._now()
        result = func(*args, **kwargs)
        seconds = self._now() - start
        if not self.sees_fakes and without_memory(args, kwargs, result):
            return result
        flops = operations.flops(func, args, kwargs, result)
        nbytes = operations.bytes_moved(func, args, kwargs, result)
        if not flops and not nbytes:  # a view, memory set aside, a message
            return result
        again = flops if repeated() else scores_again(func, args)
        shapes = tuple(tuple(each.shape) for value in args for each in operations.tensors(value))
        packet = torch_private.packet_of(func)
        key = (packet, shapes)
        before = self._found.get(key) or Operator(str(packet), shapes)
        self._found[key] = replace(
            before,
            calls=before.calls + 1,
            flops=before.flops + flops,
            recomputed=before.recomputed + again,
            bytes=before.bytes + nbytes,
            seconds=before.seconds + seconds,
        )
        return result

    def _now(self) -> float:
        if not self._timed:
            return 0.0
        device.synchronize()
        return events.now()


def count(step: Callable[[], Any], *, timed: bool = False) -> Counted:
    """Runs a step once and says what this rank has computed in it. timed: as CountOperators'."""
    with CountOperators(timed=timed) as counter:
        step()
    return counter.counted


def scores_again(func: Any, args: Any) -> int:
    """FLOPs by which a fused attention's backward repeats its forward: q k^T, which the forward did not keep."""
    if torch_private.packet_of(func) not in torch_private.FUSED_ATTENTION_BACKWARD:
        return 0
    _, query, key, *_ = args
    return 2 * math.prod(query.shape) * key.shape[-2]
