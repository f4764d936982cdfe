"""Who hosts the store at an address."""

from __future__ import annotations

import functools
import importlib
import os
from typing import Any

import torch.distributed as dist

AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"


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
