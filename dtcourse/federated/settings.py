"""What ranks that simulate one federation have to be told alike, in a form that can be compared.

A rank with another lr, or another sampling rate, would train its clients another way, and the mean of all would be
nobody's. So ranks compare what they were given: all of it at the start, and again before each round, since any of it
may be changed between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from dtcourse.federated.client_work import ClientWork
from dtcourse.federated.clients import Clients
from dtcourse.federated.server_optimizers import ServerOptimizer
from dtcourse.parameters.checksum import checksum


def name_of(function: Callable[..., Any] | None) -> str | None:
    """A function's name: two ranks have two objects of it."""
    if function is None:
        return None
    return getattr(function, "__qualname__", type(function).__qualname__)


def of_work(work: ClientWork) -> dict[str, Any]:
    """All that a client's work is told; functions by their names."""
    told = {field.name: getattr(work, field.name) for field in fields(work) if field.compare}
    return {
        f"work.{name}": name_of(value) if callable(value) else value for name, value in told.items()
    }


def of_server(server: ServerOptimizer) -> tuple[str, dict[str, Any]]:
    """Which optimizer it is, and its constants; the moments follow from the rounds."""
    constants = {name: value for name, value in vars(server).items() if name != "state"}
    return type(server).__qualname__, constants


def of_data(clients: Clients) -> dict[str, Any]:
    """Which samples there are, and who has which: by checksums."""
    parts = [torch.tensor(clients.sizes), *(part.to("cpu", torch.int64) for part in clients.parts)]
    return {
        "inputs": number_of(clients.inputs),
        "targets": number_of(clients.targets),
        "parts": number_of(torch.cat(parts)),
    }


def number_of(tensor: Tensor) -> tuple[tuple[int, ...], int]:
    """A tensor's shape and checksum."""
    return tuple(tensor.shape), int(checksum(tensor.detach().contiguous()))
