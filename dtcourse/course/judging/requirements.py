"""What a check says of an answer that is wrong, and the errors that carry it."""

from __future__ import annotations

from typing import Any


class CheckFailed(Exception):
    """An answer is wrong; the message is a sentence that teaches."""


class Unjudged(Exception):
    """What the judge runs without the answer has failed: that is no verdict, and costs nothing."""


class NoSandbox(ValueError):
    """The answer's process did not come to life, which is no fault of the answer."""


def unjudged(error: Exception) -> Unjudged:
    """What is said of an exercise where the judge itself has failed with this."""
    return Unjudged(
        "This could not be judged, which is no fault of the answer: what the judge runs itself ended with "
        f"{type(error).__name__} ({' '.join(str(error).split())[:200]}). Check it again: until then its points are "
        "neither earned nor lost. If it stays so, tell whoever keeps the course."
    )


class Unfinished(CheckFailed):
    """The answer is not written yet, or is not in the notebook."""


def unwritten(names: str) -> Unfinished:
    """What is said of functions that still raise NotImplementedError."""
    return Unfinished(
        f"{names} is not written yet: replace `raise NotImplementedError()` by your code."
    )


class Stopped(CheckFailed):
    """The answer hung, or ended its process: more checks of it would tell nothing new."""


class Refused(CheckFailed):
    """The answer reaches for the checks or for what measures it."""


# By name, as they travel. Unjudged is none of them: no answer's process says that its judge has failed.
KINDS = {kind.__name__: kind for kind in (CheckFailed, Refused, Stopped, Unfinished)}


def require(condition: Any, sentence: str) -> None:
    """Raise CheckFailed(sentence) unless `condition` holds."""
    if not condition:
        raise CheckFailed(sentence)


def require_close(
    got: Any,
    expected: Any,
    where: str,
    tolerance: float = 1e-6,
    hint: str = "",
    split: bool = False,
) -> None:
    """verify.require_close, for checks: CheckFailed unless a tensor is another one up to rounding.

    split: whether it is put together from parts of a batch; else the sentence names neither ranks nor batch
    """
    from dtcourse import verify

    try:
        verify.require_close(got, expected, where, tolerance, hint, split)
    except verify.NotEqual as error:
        raise CheckFailed(str(error)) from None


def number(value: Any) -> Any:
    """A tensor that holds one number as that number, as Python has it; everything else as it is."""
    is_tensor = hasattr(value, "item") and hasattr(value, "numel")
    return value.item() if is_tensor and value.numel() == 1 else value
