"""Priority: each layer waits for its own gradient, and takes its own step, just before its next forward.

    model = PriorityDataParallel(model, optimizer)     # the loop stays as it was
    for x, y in batches:
        optimizer.zero_grad()
        loss(model(x), y).backward()                   # returns while gradients are still on their way
        optimizer.step()                               # notes that a step is due, and returns
    model.synchronize()                                # before anything else reads the parameters

When backward ends, the first layer's gradient has just been made, and it is the first that the next forward needs.
Where all must arrive before the step, their order changes nothing: the network carries the same bytes until the last
has arrived. So the wait moves from the end of backward into the next forward, layer by layer, and then the order
counts: cut into slices, what is needed soonest overtakes what is not (plan.py). With wait_in="backward" both can be
compared.

Bytes a rank sends: as DistributedDataParallel, 2 (p - 1) / p of the gradients in a step (ring), in more messages.
Memory: the gradients twice until the step, .grad and what travels; once after it.
Source: Jayarajan et al. 2019 (P3, arXiv 1905.03960); Peng et al. 2019 (ByteScheduler, SOSP), whose cross-barrier this
is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from dtcourse.communication_scheduling.layer_steps import LayerSteps
from dtcourse.communication_scheduling.plan import Slice, check_sizes
from dtcourse.communication_scheduling.scheduled_reducer import ScheduledReducer
from dtcourse.parameters.backward import check_only_wrapper, check_same_parameters, weakly
from dtcourse.parameters.buckets import Bucket
from dtcourse.parameters.replicas import Group, broadcast_model
from dtcourse.parameters.unused import UsedParameters, parameters_below
from dtcourse.parameters.wrapper import Wrapper

SLICE_BYTES = 4 << 20
WAITS = ("forward", "backward")


class PriorityDataParallel(Wrapper):
    """Wraps `module`, trained by `optimizer` (of torch.optim; not changed), whose step is taken layer by layer.

    module:       as for DistributedDataParallel; buffers are rank 0's at the start and each rank's own from then on
    slice_bytes:  at most as much travels in one all-reduce
    credit_bytes: how much may be handed to the network at once; default one slice. math.inf: first in, first out
    wait_in:      "forward": each layer before its own; "backward": for all of them at its end, as
                  DistributedDataParallel does, and .grad holds the means when it returns
    find_unused_parameters: as there

    After optimizer.step() parameters have no .grad, as if zero_grad() had followed, and their new values only when
    their layer runs again, or after synchronize(). The learning rates that count are those at step().

    Raises ValueError for an optimizer that cannot step one layer at a time, or that has not all of the module's
    parameters; later for gradients that are changed between backward and step, and for a layer whose parameters are
    used before its own forward.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        process_group: Group = None,
        *,
        slice_bytes: int = SLICE_BYTES,
        credit_bytes: float | None = None,
        wait_in: str = "forward",
        find_unused_parameters: bool = False,
    ) -> None:
        super().__init__()
        self.credit_bytes = slice_bytes if credit_bytes is None else credit_bytes
        check_sizes(slice_bytes, self.credit_bytes)
        if wait_in not in WAITS:
            raise ValueError(f'wait_in is "forward" or "backward"; got {wait_in!r}')
        names = {p: name for name, p in module.named_parameters() if p.requires_grad}
        if not names:
            raise ValueError(
                "none of the module's parameters needs a gradient: there is nothing to send"
            )
        self.steps = LayerSteps(optimizer, names)
        broadcast_model(module, group=process_group)
        self.module, self.wait_in = module, wait_in
        self.require_backward_grad_sync = True
        self.layers = _layers(module)
        number: dict[Any, int] = {}
        for i, layer in enumerate(self.layers):
            for parameter in layer.parameters(recurse=False):
                number.setdefault(parameter, i)
        used = UsedParameters(
            list(names), find_unused_parameters, static=False, group=process_group
        )
        layer_of = {p: number[p] for p in names}
        self.reducer = ScheduledReducer(
            names, layer_of, process_group, slice_bytes, used, waits=wait_in == "backward"
        )
        self.planned: list[Slice] = []
        self._called: dict[nn.Module, int] = {}  # before there is a plan: in which order
        self._needed_by: dict[nn.Module, list[Bucket]] = {}
        for each in module.modules():
            each.register_forward_pre_hook(weakly(self._before_forward))
        optimizer.register_step_pre_hook(weakly(self._step_is_called))

    # --- forward --------------------------------------------------------------------------------------------

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Runs the wrapped module; on the way, each layer waits for its gradient and takes the step that is due."""
        reducer, trains = self.reducer, torch.is_grad_enabled()
        synchronises = trains and self.require_backward_grad_sync
        if trains:
            check_same_parameters(self.module, reducer.names)
        if reducer.in_flight and not (self.planned and self.steps.due):
            # There is no plan yet; or no step was taken, and the means add up, as they do without this wrapper.
            self.synchronize()
        if synchronises and not reducer.order:
            check_only_wrapper(reducer, reducer.names)
        elif synchronises and not self.planned:
            reducer.rebuild()
            self._plan()
        output = self.module(*inputs, **keywords)
        self._finish_the_rest(output)
        if synchronises:
            reducer.prepare_for_backward(output)
        elif trains:
            reducer.keep_local(output)
        return output

    def _before_forward(self, module: nn.Module, inputs: Any) -> None:
        """The hook of every module: what it needs has to have arrived."""
        if not self.planned:
            self._called.setdefault(module, len(self._called))
        elif self.steps.due:
            for bucket in self._needed_by.get(module, ()):
                self._finish(bucket)

    def _finish(self, bucket: Bucket) -> None:
        """Waits for a layer's gradient, and takes the step that is due with it."""
        self.reducer.finish(bucket)
        self.steps.take(bucket)

    def _finish_the_rest(self, output: Any) -> None:
        """Layers that this forward has not come to. None of what they hold may have been used."""
        left = self.steps.waiting()
        if not left:
            return
        used = parameters_below(output) or set()
        early = [p for bucket in left for p in bucket.parameters() if p in used]
        if early:
            raise ValueError(
                f"{', '.join(self.reducer.names[p] for p in early)}: used by another module "
                "before its own forward, which "
                'would have taken its step first. Call the module that holds it, or pass wait_in="backward"'
            )
        for bucket in left:
            self._finish(bucket)

    def _plan(self) -> None:
        """Who needs which layer, and what leaves when: once, after the first backward."""
        called, reducer = self._called, self.reducer
        above = {child: m for m in self.module.modules() for child in m.children()}
        urgency = [len(called)] * len(self.layers)
        for layer in self.layers:
            user = layer
            while user not in called:  # what it holds is used by a module above it
                user = above[user]
            for parameter in layer.parameters(recurse=False):
                if parameter not in reducer.place:  # frozen
                    continue
                bucket = reducer.buckets[reducer.place[parameter][0]]
                # of a shared parameter, the first layer that holds it
                i = reducer.layer_of[parameter]
                urgency[i] = min(urgency[i], called[user])
                if bucket not in self._needed_by.setdefault(user, []):
                    self._needed_by[user].append(bucket)
        # Ranks may have called them in another order: rank 0's counts.
        agreed = dict(enumerate(self._from_rank_0(urgency)))
        self.planned = reducer.plan(agreed, self.credit_bytes)

    def _from_rank_0(self, numbers: list[int]) -> list[int]:
        told = torch.tensor(numbers, device=self.reducer.parameters[0].device)
        torch.distributed.broadcast(told, group=self.reducer.group, group_src=0)
        return told.tolist()

    # --- the optimizer's step ---------------------------------------------------------------------------------

    def _step_is_called(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        """A hook of optimizer.step(): what is in flight is stepped later, and this step finds no gradients."""
        if self.steps.taking or self.steps.due or not self.reducer.in_flight:
            return
        if any(argument is not None for argument in (*arguments[1:], *keywords.values())):
            raise ValueError(
                "step(closure) runs forward and backward inside the step, which "
                "here is taken layer by layer later: call them before optimizer.step(), without a closure"
            )
        reducer = self.reducer
        stays = {p for p in reducer.parameters if p not in reducer.used_somewhere}
        skipped = stays | {p for p in reducer.parameters if reducer.taken_back(p)}
        self.steps.note(reducer.buckets, skipped, reducer.view)
        reducer.local.clear()
        for parameter in reducer.parameters:
            if parameter not in stays:
                parameter.grad = None

    def synchronize(self) -> None:
        """Waits for all gradients and takes the steps that are due; where none is due yet, .grad becomes the mean.

        Call it before anything but the model reads parameters (to save, to compare), or before gradients are clipped.
        """
        reducer, due = self.reducer, bool(self.steps.due)
        for bucket in list(reducer.in_flight):
            self._finish(bucket)
            for parameter in () if due else bucket.parameters():
                if parameter in reducer.used_somewhere and not reducer.taken_back(parameter):
                    parameter.grad = reducer.view(parameter).clone()

    def averaged_gradients(self) -> dict[str, torch.Tensor | None]:
        """Copies of the means, by name; None where no rank has one. Waits for them, and changes nothing else.

        Call it between backward and step, or after step as long as no forward has followed.
        """
        reducer = self.reducer
        means: dict[Any, torch.Tensor] = {}
        for bucket, works in reducer.in_flight.items():
            for work in works:
                work.wait()
            means.update(zip(bucket.parameters(), bucket.gradients(), strict=True))
        copies: dict[str, torch.Tensor | None] = {}
        for parameter, name in reducer.names.items():
            travels = parameter in means and parameter in reducer.used_somewhere
            mean = means[parameter] if travels else parameter.grad
            copies[name] = None if mean is None else mean.clone()
        return copies

    def state_dict(self, *arguments: Any, **keywords: Any) -> Any:
        """The wrapped module's own state, after the steps that are due."""
        self.synchronize()
        return super().state_dict(*arguments, **keywords)


def _layers(module: nn.Module) -> list[nn.Module]:
    """The modules that hold parameters themselves, in the order of definition."""
    return [m for m in module.modules() if any(True for _ in m.parameters(recurse=False))]
