"""The Reducer with the wait taken out: gradients leave slice by slice, in the order of a plan, and stay under way.

    backward's hooks -> a layer's gradient is complete -> all slices leave whose turn it is
    backward ends    -> nobody waits
    finish(bucket)   -> waits for this layer's slices: before its next forward (priority.py)

A bucket is a layer: what one module holds itself. It is cut into slices, and each slice is an all-reduce of its own.
The parameter's .grad keeps this rank's own gradient meanwhile; the mean is in the bucket. Whoever changes .grad in
between (clips it, say) would change nothing of what travels: `taken_back` finds out.

The first backward sends its slices in the order in which they come, and notes when. From these times, the slowest
rank's, all ranks make the same plan. On a GPU the times are those of events in its stream, since the host only queues
what backward computes. (unverified: no GPU was at hand.)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.communication_scheduling.plan import Slice, send_order
from dtcourse.parameters.buckets import Bucket
from dtcourse.parameters.reducer import Reducer
from dtcourse.parameters.replicas import Group
from dtcourse.parameters.unused import UsedParameters
from dtcourse.streams import Moment
from dtcourse.torch_private import version_of


class ScheduledReducer(Reducer):
    """names, group, used: as for a Reducer.

    layer_of:  {parameter: the number of its layer};  slice_bytes: at most as much travels in one all-reduce
    waits:     for all of them when backward ends, as a Reducer does

    in_flight: buckets that have been sent in full and not been waited for
    sending:   the slices, in the order in which they leave
    """

    def __init__(
        self,
        names: Mapping[Any, str],
        layer_of: Mapping[Any, int],
        group: Group,
        slice_bytes: int,
        used: UsedParameters,
        waits: bool = False,
    ) -> None:
        self.layer_of, self.slice_bytes, self.waits = layer_of, slice_bytes, waits
        self.in_flight: dict[Bucket, list[Any]] = {}
        # When its gradient was there, and when that backward had begun.
        self.ready_at: dict[Any, tuple[Moment, Moment]] = {}
        self.used_somewhere: set[torch.Tensor] = set()
        self.seen: dict[Any, tuple[torch.Tensor | None, int]] = {}  # .grad, as it was copied
        self._began: Moment | None = None
        self._is_planned = False
        super().__init__(names, group, None, self._layers, used, gradient_as_bucket_view=False)

    # --- which slices there are, and in which order -----------------------------------------------------------

    def _layers(self, order: Sequence[torch.Tensor]) -> list[Bucket]:
        """A bucket a layer, and dtype: in the order in which they are complete."""
        layers: dict[Any, list[torch.Tensor]] = {}
        for parameter in order:
            key = (self.layer_of[parameter], parameter.dtype, parameter.device)
            members = layers.pop(key, [])
            layers[key] = [*members, parameter]  # its place is that of its last gradient
        return [Bucket(i, each, i == len(layers) - 1) for i, each in enumerate(layers.values())]

    def build(self, order: Sequence[torch.Tensor]) -> None:
        """Layers, cut into slices, which leave in the order of layers until there is a plan."""
        super().build(order)
        self.sending = [(b, start, stop) for b in self.buckets for start, stop in self._cuts(b)]

    def _cuts(self, bucket: Bucket) -> list[tuple[int, int]]:
        """Where its slices begin and end, in elements."""
        size = max(1, self.slice_bytes // _itemsize(bucket))
        return [(i, min(i + size, bucket.elements)) for i in range(0, bucket.elements, size)]

    def plan(self, urgency: Mapping[int, int], credit_bytes: float) -> list[Slice]:
        """Makes the order of sending from what the last backward noted. All ranks call it, and get the same.

        urgency: {layer: 0 for what the next forward needs first}
        Returns the slices in that order.
        """
        device = self.parameters[0].device
        took = self._time_slices()
        after = {p: there.seconds_since(began) for p, (there, began) in self.ready_at.items()}
        mine = [after.get(p, 0.0) for p in self.parameters] + list(took.values())
        slowest = torch.tensor(mine, dtype=torch.float64, device=device)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX, group=self.group)
        times = slowest.tolist()
        ready = dict(zip(self.parameters, times, strict=False))
        seconds = dict(zip(took, times[len(ready) :], strict=True))
        slices, complete = [], 0.0
        for i, bucket in enumerate(self.buckets):
            layer = self.layer_of[bucket.parameters()[0]]
            # A bucket is never sent before those that are complete before it.
            complete = max(complete, *(ready[p] for p in bucket.parameters()))
            for start, stop in self._cuts(bucket):
                nbytes = (stop - start) * _itemsize(bucket)
                slices.append(
                    Slice(i, start, stop, nbytes, complete, urgency[layer], seconds[nbytes])
                )
        planned = [slices[i] for i in send_order(slices, credit_bytes)]
        self.sending = [(self.buckets[s.layer], s.start, s.stop) for s in planned]
        self._is_planned = True
        return planned

    def _time_slices(self) -> dict[int, float]:
        """How long one all-reduce of each size takes here, in seconds. Nothing else is on its way."""
        took = {}
        for bucket in self.buckets:
            for start, stop in self._cuts(bucket):
                nbytes = (stop - start) * _itemsize(bucket)
                if nbytes not in took:
                    probe = torch.zeros_like(bucket.buffer()[start:stop])
                    dist.barrier(self.group)
                    begun = Moment(probe.device)
                    dist.all_reduce(probe, group=self.group)
                    took[nbytes] = Moment(probe.device).seconds_since(begun)
        return took

    # --- in a backward ------------------------------------------------------------------------------------------

    def start_pass(self, unused: Iterable[torch.Tensor] = ()) -> None:
        super().start_pass(unused)
        self.complete: set[Bucket] = set()
        self.num_sent = 0
        self._began = None

    def backward_begins(self, local: bool) -> None:
        if self._began is None:
            self._began = Moment(self.parameters[0].device)
            self.seen = {}
        super().backward_begins(local)

    def copied(self, parameter: torch.Tensor) -> None:
        """Its gradient is in its bucket; .grad stays this rank's own."""
        if not self._is_planned and self._began is not None:
            self.ready_at[parameter] = Moment(parameter.device), self._began
        gradient = parameter.grad
        self.seen[parameter] = (gradient, 0 if gradient is None else version_of(gradient))

    def send(self, bucket: Bucket) -> Any:
        """A layer is complete: sends all slices whose turn it is."""
        self.complete.add(bucket)
        self.in_flight.setdefault(bucket, [])
        while self.num_sent < len(self.sending):
            of, start, stop = self.sending[self.num_sent]
            if of not in self.complete:
                break
            work = dist.all_reduce(of.buffer()[start:stop], group=self.group, async_op=True)
            self.in_flight[of].append(work)
            self.num_sent += 1
        return _Sent(self, bucket)

    def wait_for_oldest(self) -> None:
        """Nobody waits at the end of a backward: it stays in flight."""
        self.backward.under_way.popleft()

    def hand_out(self, used: set[torch.Tensor]) -> None:
        """Backward is over. What was used somewhere will have a mean; .grad stays as it is,
        unless all is waited for.
        """
        self.used_somewhere = used
        if self.waits:
            for bucket in list(self.in_flight):
                self.finish(bucket)
            super().hand_out(used)

    # --- after it -----------------------------------------------------------------------------------------------

    def finish(self, bucket: Bucket) -> None:
        """Waits until this layer's slices have all arrived."""
        for work in self.in_flight.pop(bucket, ()):
            work.wait()

    def taken_back(self, parameter: torch.Tensor) -> bool:
        """Whether .grad has been cleared since its gradient left, so that no step is to be taken with it.

        Raises ValueError where it has been changed to something else.
        """
        then, version = self.seen[parameter]
        now = parameter.grad
        if now is then and (now is None or version_of(now) == version):
            return False
        if now is None or not now.any():
            return True
        raise ValueError(
            f"the gradient of {self.names[parameter]} was changed after backward and before the optimizer's step "
            "(clipping by the norm, unscaling?). It is on its way to the other ranks by then: what needs all "
            "gradients at once cannot be had while each layer waits for its own. Call synchronize() first, which "
            "waits for all of them, or pass "
            'wait_in="backward"'
        )


class _Sent:
    """What a Reducer keeps of a bucket under way, and waits for after a backward that failed half-way."""

    def __init__(self, reducer: ScheduledReducer, bucket: Bucket) -> None:
        self._reducer, self._bucket = reducer, bucket

    def wait(self) -> None:
        self._reducer.finish(self._bucket)


def _itemsize(bucket: Bucket) -> int:
    return bucket.parameters()[0].element_size()
