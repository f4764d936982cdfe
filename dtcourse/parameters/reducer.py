"""The Reducer: gradients go into buckets as backward makes them, and each bucket travels as soon as it is full.

    reducer = Reducer({p: name for name, p in module.named_parameters()}, group)
    output = module(x)
    reducer.prepare_for_backward(output)      # the next backward is to be averaged over the ranks
    loss(output).backward()                   # when it returns, each .grad is the mean

In one backward, for each gradient and each bucket:

    gradient_is_ready  ->  mark_ready  ->  send            ->  finish_backward  ->  arrived  ->  hand_out
    (a hook)               into its bucket  full buckets       (at the end)         wait         into .grad

A method of data parallelism is what it does with a bucket: its `hook` gets a full one and returns what to wait for, a
Future of the reduced flat tensor. ZeRO-2 sends a bucket to one owner alone, compression sends less of it. Where a
gradient is used many times before it should travel (micro-batches of a pipeline), call keep_local() first; then either
prepare_for_backward() before the last backward, which overlaps, or reduce_local() after it.

Source: Li et al., PyTorch Distributed (VLDB 2020, arXiv 2006.15704), section 3.2; the name is PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.parameters.backward import BackwardPass, check_gradient, on_backward, on_gradient
from dtcourse.parameters.buckets import Bucket, assign
from dtcourse.parameters.replicas import Group
from dtcourse.parameters.unused import UsedParameters
from dtcourse.torch_private import after_backward

# Gets a full bucket; returns a Future of its reduced buffer.
Hook = Callable[[Bucket], Any]
# Gets parameters in the order in which their gradients become ready; returns buckets in the order of sending.
Assign = Callable[[Sequence[torch.Tensor]], list[Bucket]]


class Reducer:
    """Leaves the mean of all ranks' gradients in every parameter when a backward ends that it was prepared for.

    names:  {parameter: its name}, in the order of definition: the same on every rank
    group:  the ranks that share the batch
    hook:   what to do with a full bucket, in place of the all-reduce; dividing is then its business
    assign: cuts parameters into buckets
    used:   what is known of parameters that get no gradient; default: all get one
    gradient_as_bucket_view: gradients are views into the buckets; else tensors of their own

    divide_by: what a gradient is divided by before the all-reduce: the number of ranks
    buckets:   in the order of sending; after the first backward rebuild() takes the order in which gradients came
    """

    if_twice = (
        "Forward must return all that the loss depends on; reentrant checkpoints that share a parameter need "
        "static_graph=True or use_reentrant=False; and with static_graph=True every step must use the parameters "
        "that the first one used: where that changes, pass find_unused_parameters=True instead."
    )
    if_missing = (
        "Pass find_unused_parameters=True (with static_graph=True they must be the "
        "same in every step), or freeze them"
    )

    def __init__(
        self,
        names: Mapping[Any, str],
        group: Group = None,
        hook: Hook | None = None,
        assign: Assign = assign,
        used: UsedParameters | None = None,
        gradient_as_bucket_view: bool = True,
    ) -> None:
        self.names, self.parameters, self.group = names, list(names), group
        self.hook, self.assign = hook, assign
        self.divide_by = dist.get_world_size(group)
        self.used = used or UsedParameters(self.parameters, find=False, static=False, group=group)
        self.gradient_as_bucket_view = gradient_as_bucket_view
        self.bytes_under_way: int | None = None  # send no more at once, and wait for the oldest
        self.expects_backward = False  # a forward has run whose backward is still to come
        self.keeps_local = False  # the backward that comes or runs is not to be reduced
        self.local: set[torch.Tensor] = set()  # .grad has this rank's own gradients in it
        self.started: set[torch.Tensor] = set()  # had one when start_local sent the buckets
        self.order: list[torch.Tensor] = []  # in which gradients became ready, once known
        self.rebuilt = False
        # The best guess before the first backward: the reverse of the order of definition.
        self.build(self.parameters[::-1])
        self.start_pass()
        for parameter in self.parameters:
            on_gradient(parameter, self.gradient_is_ready)

    # --- before a backward ----------------------------------------------------------------------------------

    def prepare_for_backward(self, output: Any = None) -> None:
        """The next backward is to be reduced. Several forwards may have one backward; each calls this.

        output: what forward returned, to see what the loss will not depend on, and when its backward begins
        """
        for _, sent in self.backward.under_way:  # of a backward that failed half-way
            sent.wait()
        unused = self.used.unused_here(output)
        # Several forwards may have one backward, which brings what any of them uses.
        unused = self.backward.unused & unused if self.expects_backward else unused
        self.expects_backward, self.keeps_local = True, False
        self.start_pass(unused)
        on_backward(output, partial(self.backward_begins, local=False))

    def keep_local(self, output: Any = None) -> None:
        """The next backward is not: gradients stay on this rank and add up, until one is that was prepared for."""
        self.keeps_local = True
        on_backward(output, partial(self.backward_begins, local=True))

    def start_pass(self, unused: Iterable[torch.Tensor] = ()) -> None:
        """Nothing is under way."""
        self.backward = BackwardPass([len(b.parameters()) for b in self.buckets], set(unused))

    # --- in a backward --------------------------------------------------------------------------------------

    def backward_begins(self, local: bool) -> None:
        """Backward has come to what a forward returned, one to be kept local or not."""
        if not self.expects_backward:
            self.keeps_local = local
        elif not self.backward.end_awaited:
            after_backward(self.finish_backward)
            self.backward.end_awaited = True

    def gradient_is_ready(self, parameter: torch.Tensor) -> None:
        """The hook: backward has finished this parameter's gradient."""
        check_gradient(parameter.grad, self.names[parameter])
        if not self.reduces():
            self.local.add(parameter)
            return
        self.backward_begins(local=False)  # where forward hid what it returned
        now = self.backward
        now.arrivals[parameter] = now.arrivals.pop(parameter, 0) + 1
        if self.used.learning:
            return
        if not now.ready:
            self.mark_unused(now.unused)
        if now.arrivals[parameter] >= self.used.times(parameter):
            self.mark_ready(parameter)

    def reduces(self) -> bool:
        """Whether the backward that runs is to be reduced."""
        if not self.expects_backward and not self.keeps_local:
            raise RuntimeError(
                "backward ran again for a forward whose gradients have been averaged already, for one that came before "
                "another, or around the wrapper: add the losses and call backward once, or wrap all but the last in "
                "no_sync()"
            )
        return self.expects_backward

    def mark_ready(self, parameter: torch.Tensor) -> None:
        """Copies a gradient into its bucket, and sends all buckets whose turn it is."""
        now = self.backward
        if parameter in now.ready:
            raise RuntimeError(
                f"{self.names[parameter]} got a gradient, though it was counted as unused or had one already. "
                f"{self.if_twice}"
            )
        now.ready.add(parameter)
        view = self.view(parameter)
        # Divide before the sum, not after: half-precision sums of many ranks would overflow.
        scale = 1.0 if self.hook else 1.0 / self.divide_by
        if parameter.grad is None:
            view.zero_()
        else:
            torch.mul(parameter.grad, scale, out=view)
        self.copied(parameter)
        now.pending[self.place[parameter][0]] -= 1
        while now.next < len(self.buckets) and now.pending[now.next] == 0:
            bucket = self.buckets[now.next]
            now.under_way.append((bucket, self.send(bucket)))
            now.next += 1
            self.wait_for_some()

    def mark_unused(self, parameters: Iterable[torch.Tensor]) -> None:
        """This backward brings them nothing. What they have from earlier ones counts: another rank may add to it."""
        for parameter in sorted(parameters, key=self.place.__getitem__):
            self.set_aside(parameter)
            self.backward.unused.add(parameter)
            self.mark_ready(parameter)

    def send(self, bucket: Bucket) -> Any:
        """Starts to reduce a full bucket over the ranks; returns what to wait for."""
        if self.hook:
            return self.hook(bucket)
        return dist.all_reduce(bucket.buffer(), group=self.group, async_op=True).get_future()

    def wait_for_some(self) -> None:
        """Where no more than some bytes may be under way, waits for the oldest ones."""
        sent = self.backward.under_way
        while (
            self.bytes_under_way is not None
            and len(sent) > 1
            and sum(bucket.nbytes for bucket, _ in sent) > self.bytes_under_way
        ):
            self.wait_for_oldest()

    # --- at its end -----------------------------------------------------------------------------------------

    def finish_backward(self) -> None:
        """Backward is over: everything must have been sent; wait until it has arrived."""
        now = self.backward
        now.end_awaited = False
        if not now.arrivals:
            return  # all of it local, or it was after another gradient: torch.autograd.grad of an input, say
        self.expects_backward = False
        used_here = now.arrivals.keys() | self.with_local_gradient()
        if self.used.learning:
            for parameter in now.arrivals:
                self.mark_ready(parameter)
        missing = [p for p in self.parameters if p not in now.ready]
        if missing and self.used.all_come:
            raise RuntimeError(
                f"this backward gave no gradient to {', '.join(self.names[p] for p in missing)}: the loss does not "
                f"depend on them on this rank. {self.if_missing} with requires_grad_(False) before the module is "
                "wrapped; and where there are several losses, add them and call backward once."
            )
        self.mark_unused(missing)
        self.used.learn(now.arrivals)
        self.order = self.order or list(now.arrivals)
        self.collect(used_here)

    def reduce_local(self) -> None:
        """Reduces what local backwards have left here, or zero; all ranks take part, by this or by a backward."""
        self.start_local()
        self.finish_local()

    def start_local(self) -> None:
        """The first half of reduce_local: sends all buckets. No backward may bring a gradient until finish_local."""
        for parameter in self.parameters:
            if parameter not in self.local:
                parameter.grad = None
        self.prepare_for_backward()
        self.expects_backward = False
        self.started = self.with_local_gradient()
        self.mark_unused(self.parameters)

    def finish_local(self) -> None:
        """The second half: waits for the buckets, and hands out what is in them."""
        # A rank that never has a backward of its own takes part in building the buckets again, as others count.
        self.order = self.order or self.parameters[::-1]
        self.collect(self.started)

    def with_local_gradient(self) -> set[torch.Tensor]:
        """Parameters that have gradients of this rank alone."""
        return {p for p in self.local if p.grad is not None}

    def collect(self, used_here: set[torch.Tensor]) -> None:
        """Waits until all buckets have arrived, and hands out what is in them."""
        used = self.used.used_somewhere(used_here)
        if not used_here <= used:
            names = ", ".join(self.names[p] for p in self.parameters if p in used_here - used)
            raise RuntimeError(
                f"{names} got a gradient inside no_sync(), and was used on no rank in the first step. With "
                "static_graph=True all steps use the same: pass find_unused_parameters=True instead"
            )
        while self.backward.under_way:
            self.wait_for_oldest()
        self.hand_out(used)
        self.local.clear()
        self.start_pass()

    def wait_for_oldest(self) -> None:
        """Waits for the bucket that was sent first."""
        bucket, sent = self.backward.under_way.popleft()
        self.arrived(bucket, sent.wait())

    # --- what becomes of a gradient: a technique that keeps them elsewhere says so here -------------------------

    def set_aside(self, parameter: torch.Tensor) -> None:
        """A gradient of earlier backwards is about to be copied: out of the bucket, and as it is if unused."""
        if parameter.grad is not None and self.gradient_as_bucket_view:
            parameter.grad = parameter.grad.clone()

    def copied(self, parameter: torch.Tensor) -> None:
        """Its gradient is in the bucket: from here on the optimizer reads it there."""
        if self.gradient_as_bucket_view and parameter not in self.backward.unused:
            parameter.grad = self.view(parameter)

    def arrived(self, bucket: Bucket, result: Any) -> None:
        """A bucket is back. Most hooks reduce it in place; others return another tensor."""
        result = result[0] if isinstance(result, list) else result
        if self.hook and result.data_ptr() != bucket.buffer().data_ptr():
            bucket.set_buffer(result)

    def hand_out(self, used: set[torch.Tensor]) -> None:
        """All is back. Parameters that are used on no rank keep the gradient that they had."""
        if self.gradient_as_bucket_view:  # those used here have it already
            for parameter in used & self.backward.unused:
                parameter.grad = self.view(parameter)
            return
        for parameter in used:
            if parameter.grad is None:
                parameter.grad = self.view(parameter).clone()
            else:
                parameter.grad.copy_(self.view(parameter))

    # --- buckets --------------------------------------------------------------------------------------------

    def build(self, order: Sequence[torch.Tensor]) -> None:
        """Buckets for gradients that become ready in this order."""
        self.buckets = self.assign(order)
        self.place = {
            parameter: (number, slot)
            for number, bucket in enumerate(self.buckets)
            for slot, parameter in enumerate(bucket.parameters())
        }

    def view(self, parameter: torch.Tensor) -> torch.Tensor:
        """Where its gradient lies in a bucket."""
        number, slot = self.place[parameter]
        return self.buckets[number].gradients()[slot]

    def rebuild(self) -> None:
        """After the first backward: buckets in the order in which rank 0's gradients
        became ready. All ranks call it.
        """
        if self.rebuilt or not self.order or self.used.varies:
            return  # where the order changes from step to step, what we have is as good as any
        number = {p: i for i, p in enumerate(self.parameters)}
        ready = [number[p] for p in self.order]
        unused = sorted(set(number.values()) - set(ready))  # ready before all others
        order = torch.tensor(unused + ready, device=self.parameters[0].device)
        dist.broadcast(order, group=self.group, group_src=0)
        self.build([self.parameters[i] for i in order.tolist()])
        if self.gradient_as_bucket_view:
            for parameter in self.parameters:
                if parameter.grad is not None:
                    parameter.grad = self.view(parameter).copy_(parameter.grad)
        self.start_pass(self.backward.unused)
        self.rebuilt = True
