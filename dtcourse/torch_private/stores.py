"""Stores of torch: who hosts one at an address, and how soon one is heard of what others have written."""

from __future__ import annotations

import functools
import importlib
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
SOON = 0.02  # seconds in which ranks that go alike have written
NAP = 0.0003  # between two looks


def host_own_stores(port: int) -> None:
    """From now on, in this process: rank 0 hosts the store at any address but `port`, as it does without torchrun.

    Where TORCHELASTIC_USE_AGENT_STORE is set, torch assumes that somebody serves a store at MASTER_PORT. A function
    that names a port of its own would wait for one there, to the time limit.
    """
    # By its name: torch.distributed has a function that is called like this module of it.
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    made = getattr(rendezvous._create_c10d_store, "__wrapped__", rendezvous._create_c10d_store)

    @functools.wraps(made)
    def create(hostname: Any, its_port: Any, *args: Any, **kwargs: Any) -> dist.Store:
        served = os.environ.pop(AGENT_STORE, None) if int(its_port) != port else None
        try:
            return made(hostname, its_port, *args, **kwargs)
        finally:
            if served is not None:
                os.environ[AGENT_STORE] = served

    rendezvous._create_c10d_store = create  # type: ignore[attr-defined]


def wait_for(store: dist.Store, keys: Sequence[str], timeout: timedelta | None = None) -> None:
    """store.wait, without its nap at first: it looks every 10 ms into a FileStore, where most are answered in less."""
    soon = time.monotonic() + SOON
    while not store.check([*keys]):
        if time.monotonic() > soon:
            store.wait([*keys]) if timeout is None else store.wait([*keys], timeout)
            return
        time.sleep(NAP)
