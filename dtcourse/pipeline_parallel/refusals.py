"""How a rank that cannot go on tells those that wait for it, at no cost to the steps that go well.

Only the first and the last stage's rank look at the batch. If one of them refuses it, the others would wait for
messages that nobody sends. To ask all ranks before each step would be a collective per step; and after the first step
nothing travels but tensors of known shapes, no headers that could carry a word. So the refusal comes in place of a
tensor: one of the shape that is waited for, whose first element is a NaN with bits that no arithmetic makes, and the
reason after it, as a message of its own. Who receives it tells those that wait for *it*, and raises. On the first step
the header says it.

To look at one element is microseconds on a CPU. On a GPU it waits for the message to be there, so there a rank looks
only at the first message of a step from each other rank: batches that are refused are heard of, what happens later is
not.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dtcourse.pipeline_parallel.headers import Form

_LENGTH = 1000  # bytes of a reason
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
    return f"Rank {rank}: {type(error).__name__}: {error}"


def marked(forms: Sequence[Form]) -> list[torch.Tensor] | None:
    """Tensors of these forms that say "refused". None if none is of a floating-point dtype: they cannot."""
    tensors = [torch.zeros(form.shape, dtype=form.dtype) for form in forms]
    for tensor in tensors:
        if tensor.dtype in _MARKS and tensor.numel():
            bits, mark = _MARKS[tensor.dtype]
            tensor.view(-1)[:1].view(bits).fill_(mark)
            return tensors
    return None


def is_marked(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether what has come says "refused"."""
    for tensor in tensors:
        if tensor.dtype in _MARKS and tensor.numel():
            bits, mark = _MARKS[tensor.dtype]
            return tensor.view(-1)[:1].view(bits).item() == mark
    return False


def write(reason: str) -> torch.Tensor:
    """A reason as a message; a long one is cut."""
    text = reason.encode()[:_LENGTH].ljust(_LENGTH)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def read(message: torch.Tensor) -> str:
    """The reason in a message."""
    return bytes(message.tolist()).decode(errors="ignore").rstrip()


def empty() -> torch.Tensor:
    """A reason that has still to come."""
    return torch.zeros(_LENGTH, dtype=torch.uint8)
