"""What a checkpoint keeps, as bytes: data alone, which reads again by weights_only, so that nothing in it is run."""

from __future__ import annotations

import io
import re
from typing import Any

import torch


def data_bytes(value: Any, what: str, not_done: str = "saved") -> bytes:
    """`value` as torch.save writes it, once weights_only has read it again.

    what:     the beginning of the sentence that refuses it: "slot x of parameter y is a Hidden"
    not_done: its end: what has not been done with it

    Raises ValueError, here, where the value is, and not when a run must resume, for what is more than data.
    """
    stream = io.BytesIO()
    try:
        torch.save(value, stream)
        stream.seek(0)
        torch.load(stream, weights_only=True)
    except Exception as error:
        raise ValueError(
            f"{what}, and a checkpoint keeps tensors, numbers, strings and containers of them: {_reason(error)}. "
            f"Nothing was {not_done}"
        ) from None
    return stream.getvalue()


def _reason(error: Exception) -> str:
    """What torch's text is about. It goes on to ways of loading that would run what is in the file."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    if named:
        return f"to read it again, {named[1]} would have to be called"
    return str(error).partition("\n")[0].rstrip(".") or type(error).__name__
