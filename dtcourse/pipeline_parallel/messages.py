"""Activations and gradients between stages: sent as soon as they are made, received before they are needed.

What an action makes is one tensor or several; each is a message. Before a step's first ones their shapes are not known
where they are to be received, so a header goes ahead of each (how many come, dtype, sizes, whether a gradient is to
come back); from the second step on all that is taken to be as in the first, and a stage whose outputs change says so.

Sends do not block: a rank works on, and keeps what it sends until something comes that its receiver cannot have made
without it. Receives of a rank are posted in the order in which the other side sends (validate.py's one order), one
message ahead of the action that needs it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from dtcourse import device
from dtcourse.collectives import p2p
from dtcourse.pipeline_parallel import headers, refusals
from dtcourse.pipeline_parallel.actions import FORWARD, Action, Schedule, needed_by, needs, result
from dtcourse.pipeline_parallel.headers import MOST_TENSORS, Form

# By group, what steps that were refused (by whatever Mail) have left on its way: it has to stay in memory, since some
# may still be received. Their number makes the tags, so that nothing is taken for a later step's.
_left: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()
AHEAD = 1  # messages that are received before their action's turn


@dataclass(frozen=True)
class Message:
    """What one action makes for another rank: F's activations, B's or I's gradient (named B either way)."""

    made: Action
    source: int
    destination: int

    def tag(self, schedule: Schedule, number: int) -> int:
        """A number that no other tensor between these ranks has; the next one is its header's."""
        kind = 0 if self.made.kind == FORWARD else 1
        action = 2 * (self.made.stage * schedule.micro_batches + self.made.micro_batch) + kind
        return 2 * (MOST_TENSORS * action + number)


def outgoing(schedule: Schedule, rank: int) -> list[Message]:
    """All messages that a rank sends in a step, in their order."""
    found = []
    for action in schedule.ranks[rank]:
        to = needed_by(action, schedule.num_stages)
        if to is not None and schedule.rank_of[to] != rank:
            found.append(Message(result(action), rank, schedule.rank_of[to]))
    return found


def incoming(schedule: Schedule, order: list[Action], rank: int) -> list[Message]:
    """All messages that a rank receives in a step, in the order in which they are sent."""
    found = []
    for action in order:
        if (to := needed_by(action, schedule.num_stages)) is not None:
            source, destination = schedule.rank_of[action.stage], schedule.rank_of[to]
            if destination == rank != source:
                found.append(Message(result(action), source, destination))
    return found


def proven(schedule: Schedule, rank: int) -> dict[Action, list[Action]]:
    """By message that a rank receives: which of its own messages the other rank must have received before it sent it.

    That is how a rank knows what it need not keep. gloo's work says of a send that it is complete only once it has been
    waited for.
    """
    found: dict[Action, list[Action]] = {}
    for other in set(range(schedule.num_ranks)) - {rank}:
        received: list[Action] = []
        for action in schedule.ranks[other]:
            need = needs(action, schedule.num_stages)
            if need is not None and schedule.rank_of[need.stage] == rank:
                received.append(need)
            to = needed_by(action, schedule.num_stages)
            if to is not None and schedule.rank_of[to] == rank:
                found[result(action)], received = received, []
    return found


class Mail:
    """One rank's messages of all steps.

    schedule: who sends what to whom
    expected: what this rank receives in a step, in order (`incoming`)
    group:    the pipeline's ranks; group rank r performs the schedule's list r
    where:    where the stages of this rank compute. What comes is put there; a GPU's tensors travel over NCCL where
              every rank has one, else through host memory (collectives/wire/device_transport.py)
    """

    def __init__(
        self,
        schedule: Schedule,
        expected: list[Message],
        group: dist.ProcessGroup | None,
        where: torch.device,
    ) -> None:
        self.schedule, self.expected, self.group, self.device = schedule, expected, group, where
        self.rank = p2p.rank(group)
        self.outgoing = outgoing(schedule, self.rank)
        self.proven = proven(schedule, self.rank)
        self.forms: dict[Action, list[Form]] = {}  # of what comes
        self.announced: dict[Action, list[Form]] = {}  # of what goes: its headers have been sent
        self.start()

    def start(self) -> None:
        """A step begins."""
        self.to_post, self.to_send = deque(self.expected), deque(self.outgoing)
        self.refused = len(_left.get(p2p.channel(self.group), ()))  # steps before this one
        self.heard: set[int] = set()  # ranks that have sent something
        self.coming: dict[Action, tuple[Message, list[tuple[torch.Tensor, dist.Work]]]] = {}
        self.arrived: dict[Action, tuple[torch.Tensor, ...]] = {}
        self.going: dict[Action, list[tuple[torch.Tensor, dist.Work]]] = {}

    def send(self, action: Action, tensors: tuple[torch.Tensor, ...], to_stage: int) -> None:
        """Starts to send what an action has made to the rank of a stage; a stage of this rank gets it as it is.

        Raises ValueError if its shapes, dtypes or number are not those of the first step.
        """
        if self.schedule.rank_of[to_stage] == self.rank:
            self.arrived[result(action)] = tensors
            return
        message = self.to_send[0]
        assert message.made == result(action)
        self._announce(message, tensors)
        for number, tensor in enumerate(tensors):
            self._start_to_send(tensor.detach().contiguous(), message, self._tag(message, number))
        self.to_send.popleft()

    def receive(self, action: Action) -> tuple[torch.Tensor, ...] | None:
        """What an action needs of another stage: waits until it is there. None where it needs nothing.

        Tensors of which the other stage wants the gradient have `requires_grad`.

        Raises StepRefused if another rank cannot go on with the step (refusals.py).
        """
        need = needs(action, self.schedule.num_stages)
        if need is None:
            return None
        if need not in self.arrived:
            self._post_until(need)
            message, coming = self.coming.pop(need)
            for _, work in coming:
                work.wait()
            self._listen(message, [tensor for tensor, _ in coming])
            self._forget(self.proven[need])
            self.arrived[need] = tuple(
                tensor.requires_grad_(form.needs_gradient)
                for (tensor, _), form in zip(coming, self.forms[need], strict=True)
            )
            self._post_ahead()
        return self.arrived.pop(need)

    def finish(self) -> None:
        """A step ends: all that has been sent has been received."""
        self._forget(list(self.going))

    def refuse(self, error: Exception) -> None:
        """This rank cannot go on with the step: tells each rank that waits for it, instead of what it waits for next.

        What is still on its way belongs to no step any more. Tags say so, and headers are sent anew.
        """
        reason = refusals.write(refusals.reason_of(error, self.rank))
        next_to = {message.destination: message for message in reversed(self.to_send)}
        with suppress(RuntimeError):  # a connection is lost: that rank waits for nothing
            for message in next_to.values():
                forms = self.announced.get(message.made)
                if forms is None:
                    self._start_to_send(headers.empty(), message, self._tag(message, 0) + 1)
                elif (tensors := refusals.marked(forms)) is not None:
                    for number, tensor in enumerate(tensors):
                        self._start_to_send(tensor, message, self._tag(message, number))
                self._start_to_send(reason, message, self._tag(message, 0) + 1)
        _left.setdefault(p2p.channel(self.group), []).append((self.going, self.coming))
        self.forms, self.announced = {}, {}

    def _listen(self, message: Message, tensors: list[torch.Tensor]) -> None:
        """Raises if what has come is a refusal."""
        first = message.source not in self.heard
        self.heard.add(message.source)
        if (first or not device.is_gpu(self.device)) and refusals.is_marked(tensors):
            self._hear_why(message)

    def _hear_why(self, message: Message) -> None:
        reason = refusals.empty().to(self.device)
        p2p.recv(reason, message.source, self.group, self._tag(message, 0) + 1)
        raise refusals.StepRefused(self.rank, refusals.read(reason))

    def _tag(self, message: Message, number: int) -> int:
        """A tensor's, that none of a refused step has."""
        per_step = 4 * MOST_TENSORS * self.schedule.num_stages * self.schedule.micro_batches
        return self.refused * per_step + message.tag(self.schedule, number)

    def _start_to_send(self, tensor: torch.Tensor, message: Message, tag: int) -> None:
        tensor = tensor.to(self.device)
        work = p2p.isend(tensor, message.destination, self.group, tag)
        self.going.setdefault(message.made, []).append((tensor, work))

    def _post_until(self, need: Action) -> None:
        """Posts receives in their order, up to the one that is needed."""
        while need not in self.coming:
            self._post(self.to_post.popleft())

    def _post_ahead(self) -> None:
        """The next receives, so that they are under way while this rank computes.
        Not of what has no known shape yet.
        """
        while len(self.coming) < AHEAD and self.to_post and self.to_post[0].made in self.forms:
            self._post(self.to_post.popleft())

    def _post(self, message: Message) -> None:
        """Starts to receive a message; before that, its headers, where they are still to come."""
        if message.made not in self.forms:
            self.forms[message.made] = self._receive_headers(message)
        coming: list[tuple[torch.Tensor, dist.Work]] = []
        for number, form in enumerate(self.forms[message.made]):
            tensor = torch.empty(form.shape, dtype=form.dtype, device=self.device)
            tag = self._tag(message, number)
            coming.append((tensor, p2p.irecv(tensor, message.source, self.group, tag)))
        self.coming[message.made] = message, coming

    def _announce(self, message: Message, tensors: tuple[torch.Tensor, ...]) -> None:
        """Sends headers, if the other side has none yet; else checks that it need not have new ones."""
        made, forms = message.made, [Form.of(tensor) for tensor in tensors]
        known = self.announced.get(made)
        if known is None:
            for number, form in enumerate(forms):
                header = headers.write(form, len(forms))
                self._start_to_send(header, message, self._tag(message, number) + 1)
            self.announced[made] = forms
        elif known != forms:
            now, before = (", ".join(map(str, one)) for one in (forms, known))
            raise ValueError(
                f"Stage {made.stage} makes {now} for micro-batch {made.micro_batch}, "
                f"and made {before} in the first step; "
                "the next rank waits for that. Make batches of "
                "one size (drop_last=True, or padding), or a Pipeline for each size."
            )

    def _receive_headers(self, message: Message) -> list[Form]:
        """Waits for them. Whoever sends them depends on nothing that this rank has still to do: see the one order."""
        forms: list[Form] = []
        count = 1
        while len(forms) < count:
            header = headers.empty().to(self.device)
            tag = self._tag(message, len(forms)) + 1
            p2p.recv(header, message.source, self.group, tag)
            count, form = headers.read(header)
            if not count:
                self._hear_why(message)
            forms.append(form)
        return forms

    def _forget(self, messages: Iterable[Action]) -> None:
        """Frees what has been sent, once it has been received."""
        for made in messages:
            for _, work in self.going.pop(made, ()):
                work.wait()
