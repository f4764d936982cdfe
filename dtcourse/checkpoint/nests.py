"""What one slot of an optimizer's state, or one option, is in a checkpoint: a number, a tensor, or a nest of them.

    state[p]["gg"] = [left, right]               # Shampoo's and SOAP's matrices: optimizer.state.NAME.gg.0 and .1

A checkpoint has each tensor in a list or dict under a key of its own, and its path beside it. Of a parameter that is
cut, a tensor with a number per element lies as the parameter does. What would not come back as it was is refused before
anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from dtcourse import nested
from dtcourse.checkpoint.local_chunks import as_stored
from dtcourse.checkpoint.only_data import data_bytes
from dtcourse.parameters.naming import Entry
from dtcourse.parameters.placement import local


def written(value: Any, where: str, entry: Entry | None) -> Any:
    """A slot as the checkpoint is to have it, to the bottom of its nest.

    where: it is found, for the message;  entry: whose state it is, None for an option
    """
    if isinstance(value, torch.Tensor):
        return _tensor_written(value, where, entry) if value.dim() else value
    if isinstance(value, Mapping):
        if not value or not all(isinstance(key, str) for key in value):
            raise ValueError(
                f"{where} has a dict {'without anything' if not value else f'with the keys {list(value)[:4]}'}, and a "
                "checkpoint keeps dicts that have something under strings. Nothing was saved"
            )
        return {key: written(one, f"{where}: {key}", entry) for key, one in value.items()}
    if isinstance(value, list):
        return [written(one, f"{where}[{number}]", entry) for number, one in enumerate(value)]
    _check_read_again(value, where)
    if entry is not None and entry.placed.over and any(t.dim() for t in nested.tensors(value)):
        raise ValueError(
            f"{where} has tensors in a {type(value).__name__}, of which a checkpoint would keep one rank's alone: put "
            "them into a list or a dict. Nothing was saved"
        )
    return value


def _tensor_written(value: torch.Tensor, where: str, entry: Entry | None) -> torch.Tensor:
    if entry is None:
        return value
    if _by_element(value, entry):
        return as_stored(entry.placed, local(value))
    if entry.placed.over or isinstance(value, DTensor):
        raise ValueError(
            f"{where} has a tensor of shape {list(value.shape)}, its shard {list(entry.parameter.shape)}: only states "
            "of a number per element, or of one number, are kept in parts. Nothing was saved"
        )
    return value


def _by_element(value: torch.Tensor, entry: Entry) -> bool:
    """Whether it has a number for each element of what this rank keeps of the parameter."""
    alike = isinstance(value, DTensor) == isinstance(entry.parameter, DTensor)
    return alike and value.shape == entry.parameter.shape


def _check_read_again(value: Any, where: str) -> None:
    """Raises ValueError for what is more than data, which no checkpoint is read with."""
    if value is None or isinstance(value, bool | int | float | str):
        return
    data_bytes(value, f"{where} is a {type(value).__name__}")
