"""Activations and gradients between stages: sent as soon as they are made, received before they are needed.

What an action makes is one tensor or several; each is a message. Before a step's first activations their shapes are not
known where they are to be received, so a header goes ahead of each (how many come, dtype, sizes, whether a gradient is
to come back); from the second step on all that is taken to be as in the first, and a stage whose outputs change says
so. A gradient is as what it is of, and has no header.

Sends do not block: a rank works on, and keeps what it sends until something comes that its receiver cannot have made
without it. Sends and receives are posted in one order that all ranks have (posting.py), receives one message ahead of
the action that needs it, or further where the order puts them before a send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from dtcourse.collectives import decisions, p2p
from dtcourse.pipeline_parallel import headers, refusals
from dtcourse.pipeline_parallel.actions import FORWARD, Action, Schedule, needs, result
from dtcourse.pipeline_parallel.headers import Form
from dtcourse.pipeline_parallel.posting import Message, messages_of, proven

AHEAD = 1  # messages that are received before their action's turn


class Mail:
    """One rank's messages of all steps.

    schedule: who sends what to whom
    group:    the pipeline's ranks; group rank r performs the schedule's list r
    where:    where the stages of this rank compute. What comes is put there; a GPU's tensors travel over NCCL where
              every rank has one, else through host memory (collectives/wire/transport.py)
    """

    def __init__(
        self, schedule: Schedule, group: dist.ProcessGroup | None, where: torch.device
    ) -> None:
        self.schedule, self.group, self.device = schedule, group, where
        self.rank = p2p.rank(group)
        self.messages = [
            one for one in messages_of(schedule) if self.rank in (one.source, one.destination)
        ]
        self.proven = proven(schedule, self.rank)
        # By forward at a border of this rank, what it passes on: the same on both ranks of the border.
        self.forms: dict[Action, list[Form]] = {}
        self.clear()

    def clear(self) -> None:
        """Nothing is under way."""
        self.to_post = deque(self.messages)
        self.coming: dict[Action, tuple[Message, list[torch.Tensor], list[dist.Work]]] = {}
        self.arrived: dict[Action, tuple[torch.Tensor, ...]] = {}
        self.going: dict[Action, list[tuple[torch.Tensor, dist.Work]]] = {}
        self.learned: set[Action] = set()  # forms that this step's headers brought

    def start(self) -> None:
        """A step begins."""
        self.clear()
        self.words = refusals.Words(self.group, self.device)

    def send(self, action: Action, tensors: tuple[torch.Tensor, ...], to_stage: int) -> None:
        """Starts to send what an action has made to the rank of a stage; a stage of this rank gets it as it is.

        Raises ValueError if its shapes, dtypes or number are not those of the first step.
        """
        made = result(action)
        if self.schedule.rank_of[to_stage] == self.rank:
            self.arrived[made] = tensors
            return
        while self.to_post[0].made != made:
            self._post(self.to_post.popleft())
        message = self.to_post[0]
        if made.kind == FORWARD:
            self._announce(message, [Form.of(tensor) for tensor in tensors])
        self.to_post.popleft()
        sound = [tensor.detach().contiguous() for tensor in tensors]
        self._start_to_send(message, refusals.with_room(sound))

    def receive(self, action: Action) -> tuple[torch.Tensor, ...] | None:
        """What an action needs of another stage: waits until it is there. None where it needs nothing.

        Tensors of which the other stage wants the gradient have `requires_grad`.

        Raises StepRefused if another rank cannot go on with the step (refusals.py).
        """
        need = needs(action, self.schedule.num_stages)
        if need is None:
            return None
        if need not in self.arrived:
            while need not in self.coming:
                self._post(self.to_post.popleft())
            message, tensors = self._come(need)
            self.words.listen(message, tensors)
            self._forget(self.proven[need])
            forms = self._forms(message)
            self.arrived[need] = tuple(
                tensor.requires_grad_(form.needs_gradient)
                for tensor, form in zip(tensors[: len(forms)], forms, strict=True)
            )
            self._post_ahead()
        return self.arrived.pop(need)

    def finish(self) -> None:
        """A step ends: all that has been sent has been received.

        Raises StepRefused if it has not been a step for another rank.
        """
        self._forget(list(self.going))
        self.words.look_back()

    def refuse(self, error: Exception) -> None:
        """This rank cannot go on with the step: in place of each message that is still to be sent goes a refusal.

        What is still to come is received, so that no message is left when the step is over on all ranks. With a rank
        whose connection is lost nothing more is exchanged.
        """
        self.words.tell(error)
        lost: set[int] = set()

        def unless_lost(rank: int, exchange: Callable[[Any], None], what: Any) -> None:
            try:
                if rank not in lost:
                    exchange(what)
            except refusals.StepRefused:
                pass  # it has been heard
            except Exception:
                lost.add(rank)

        for message, _, _ in list(self.coming.values()):
            unless_lost(message.source, self._receive_unused, message)
        while self.to_post:
            message = self.to_post.popleft()
            if message.source == self.rank:
                unless_lost(message.destination, self._send_refusal, message)
            else:
                unless_lost(message.source, self._receive_unused, message)
        for message in self.messages:
            unless_lost(message.destination, self._forget, [message.made])
        # Whoever sends this step's gradient as a refusal, and whoever gets it, take its forward for not announced.
        for forward in self.words.refused & self.learned:
            self.forms.pop(forward, None)
        self.clear()

    def _send_refusal(self, message: Message) -> None:
        if message.made.kind == FORWARD and message.made not in self.forms:
            self._start_to_send(message, [headers.empty()])
        else:
            self._start_to_send(message, refusals.marked(self._forms(message)))
            self.words.refused.add(message.forward)

    def _receive_unused(self, message: Message) -> None:
        if message.made not in self.coming:
            self._post(message)
        message, tensors = self._come(message.made)
        self.words.listen(message, tensors)

    def _forms(self, message: Message) -> list[Form]:
        """What a message consists of: nothing if its forward was refused, or passes nothing that needs a gradient."""
        forms = self.forms.get(message.forward, [])
        if message.made.kind == FORWARD:
            return forms
        return [form._replace(needs_gradient=False) for form in forms if form.needs_gradient]

    def _start_to_send(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            here = tensor.to(self.device)
            work = p2p.isend(here, message.destination, self.group, message.number)
            self.going.setdefault(message.made, []).append((here, work))

    def _post_ahead(self) -> None:
        """The next receives, so that they are under way while this rank computes.
        Not of what has no known shape yet.
        """
        while len(self.coming) < AHEAD and self.to_post and self.to_post[0].source != self.rank:
            if self.to_post[0].forward not in self.forms:
                return
            self._post(self.to_post.popleft())

    def _post(self, message: Message) -> None:
        """Starts to receive a message; before that, its headers, where they are still to come."""
        if message.made.kind == FORWARD and message.made not in self.forms:
            self.forms[message.made] = self._receive_headers(message)
            self.learned.add(message.made)
        tensors = refusals.with_room(
            [
                torch.empty(form.shape, dtype=form.dtype, device=self.device)
                for form in self._forms(message)
            ]
        )
        works = [p2p.irecv(one, message.source, self.group, message.number) for one in tensors]
        self.coming[message.made] = message, tensors, works

    def _come(self, made: Action) -> tuple[Message, list[torch.Tensor]]:
        """Waits for a message."""
        message, tensors, works = self.coming.pop(made)
        for work in works:
            work.wait()
        return message, tensors

    def _announce(self, message: Message, forms: list[Form]) -> None:
        """Sends headers, if the other side has none yet; else checks that it need not have new ones."""
        made = message.made
        known = self.forms.get(made)
        if known is None:
            self._start_to_send(message, [headers.write(form, len(forms)) for form in forms])
            self.forms[made] = forms
            self.learned.add(made)
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
        told = decisions.coming(message, self.group)
        if told is not None:
            return told
        forms: list[Form] = []
        count = 1
        while len(forms) < count:
            header = headers.empty().to(self.device)
            p2p.recv(header, message.source, self.group, message.number)
            count, form = headers.read(header)
            if not count:
                raise self.words.heard(message)
            forms.append(form)
        return forms

    def _forget(self, messages: Iterable[Action]) -> None:
        """Frees what has been sent, once it has been received."""
        for made in messages:
            for _, work in self.going.pop(made, ()):
                work.wait()
