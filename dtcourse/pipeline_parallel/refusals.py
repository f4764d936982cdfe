"""How a rank that cannot go on tells those that wait for it, at no cost to the steps that go well.

Only the first and the last stage's rank look at the batch. If one of them refuses it, the others would wait for
messages that nobody sends. To ask all ranks before each step would be a collective per step; and after the first step
nothing travels but tensors of known shapes, no headers that could carry a word. So the refusal comes in place of a
tensor: one of the shape that is waited for, whose first element is a NaN with bits that no arithmetic makes. On the
first step the header says it. Who receives it refuses the step to those that wait for *it*, and raises.

All messages of the step are exchanged nevertheless, as refusals: so none is left for a later step to take for its own,
and none stands before a later one's (NCCL's order). The reason lies in the group's store, where whoever has heard of a
refusal looks it up.

To look at one element is microseconds on a CPU. On a GPU it waits for the message to be there, so there a rank looks
only at the first message of a step from each other rank, and at all of them when the step is over: that a batch is
refused is heard at once, what happens later at the end, and by those who wait for that rank itself; for others the
gradients are NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from dtcourse import device
from dtcourse.collectives import p2p
from dtcourse.collectives.wire.channel import Channel
from dtcourse.pipeline_parallel.actions import Action
from dtcourse.pipeline_parallel.headers import Form
from dtcourse.pipeline_parallel.posting import Message

_LENGTH = 1000  # characters of a reason
# By dtype, its bits as a number, and which of them is the mark:
# a NaN whose payload spells nothing that hardware writes.
_MARKS = {
    torch.float64: (torch.int64, 0x7FFC_0DE0_5A5A_0DE1),
    torch.float32: (torch.int32, 0x7FC5_0DE1),
    torch.float16: (torch.int16, 0x7E5D),
    torch.bfloat16: (torch.int16, 0x7FDD),
}


class StepRefused(ValueError):
    """A step that this rank cannot do, because of another one. `reason` says which, and what happened there."""

    def __init__(self, rank: int, reason: str) -> None:
        self.reason = reason
        super().__init__(
            f"Rank {rank} cannot go on with this step, since another rank cannot. {reason}"
        )


def reason_of(error: Exception, rank: int) -> str:
    """What to tell others of an error; of one that has been heard of, what was heard."""
    if isinstance(error, StepRefused):
        return error.reason
    return f"Rank {rank}: {type(error).__name__}: {error}"[:_LENGTH]


def can_be_marked(tensor: torch.Tensor) -> bool:
    """Whether its first element can say "refused"."""
    return tensor.dtype in _MARKS and tensor.numel() > 0


def with_room(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A message with a tensor that can say "refused": one element more where none of its own can (tokens, a mask)."""
    if not tensors or any(map(can_be_marked, tensors)):
        return list(tensors)
    return [*tensors, torch.zeros(1, device=tensors[0].device)]


def marked(forms: Sequence[Form]) -> list[torch.Tensor]:
    """A message of these forms that says "refused"; nothing where they are none."""
    tensors = with_room([torch.zeros(form.shape, dtype=form.dtype) for form in forms])
    for tensor in filter(can_be_marked, tensors):
        bits, mark = _MARKS[tensor.dtype]
        tensor.view(-1)[:1].view(bits).fill_(mark)
        break
    return tensors


def mark_of(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Whether what has come says "refused", as a tensor of one element, where the message is."""
    for tensor in filter(can_be_marked, tensors):
        bits, mark = _MARKS[tensor.dtype]
        return tensor.detach().view(-1)[:1].view(bits) == mark
    return torch.zeros(1, dtype=torch.bool)


# By group, how many steps (of whatever Pipeline) there have been: every rank of it takes part in each.
_steps: WeakKeyDictionary[Channel, count[int]] = WeakKeyDictionary()


class Words:
    """What a rank has heard of refusals in a step, and what it says.

    refused: of the messages that were refusals, sent or received, the forward at their border
    """

    def __init__(self, group: dist.ProcessGroup | None, where: torch.device) -> None:
        self.channel = p2p.channel(group)
        self.group = dist.group.WORLD if group is None else group
        self.rank = self.channel.rank
        self.at_once = not device.is_gpu(where)
        self.step = next(_steps.setdefault(self.channel, count()))
        self.heard_of: set[int] = set()  # ranks that have sent something
        self.unread: list[tuple[Message, torch.Tensor]] = []
        self.refused: set[Action] = set()

    def tell(self, error: Exception) -> None:
        """Leaves the reason of this rank's refusals where the others find it."""
        if self.group is not None:
            self.group.get_group_store().set(self._place(self.rank), reason_of(error, self.rank))

    def listen(self, message: Message, tensors: Sequence[torch.Tensor]) -> None:
        """Raises StepRefused if what has come is a refusal; on a GPU, if it is the first message of its rank."""
        if not tensors:
            return
        first = message.source not in self.heard_of
        self.heard_of.add(message.source)
        self.unread.append((message, mark_of(tensors)))
        if first or self.at_once:
            self.look_back()

    def look_back(self) -> None:
        """Raises StepRefused if one of the messages that nobody has looked at was a refusal."""
        read, self.unread = self.unread, []
        if not read:
            return
        together = torch.cat([mark for _, mark in read])
        # As decisions.is_virtual, which is two calls for each message: nobody is there to refuse, and what has come has
        # no values.
        if getattr(self.group, "answers", None) is not None:
            return
        marks = together.tolist()
        refused = [message for (message, _), mark in zip(read, marks, strict=True) if mark]
        self.refused |= {message.forward for message in refused}
        if refused:
            raise self.heard(refused[0])

    def heard(self, message: Message) -> StepRefused:
        """What to raise when a message was a refusal."""
        assert self.group is not None
        reason = self.group.get_group_store().get(self._place(message.source)).decode()
        return StepRefused(self.rank, reason)

    def _place(self, rank: int) -> str:
        return f"dtcourse/pipeline_parallel/refused/{self.step}/{rank}"
