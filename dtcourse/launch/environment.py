"""What a rank finds around it: the environment variables of torchrun, and the notebook's own."""

from __future__ import annotations

import linecache
import sys

from dtcourse.launch import options


def environments(layout: options.Layout, port: int, base: dict[str, str]) -> list[dict[str, str]]:
    """The environment of each rank: torchrun's names, so that what runs here runs there."""
    from dtcourse import device

    for_ranks = []
    for index in range(layout.world_size):
        node, local = divmod(index, layout.ranks_per_node)
        own = {
            "RANK": index,
            "WORLD_SIZE": layout.world_size,
            "LOCAL_RANK": local,
            "LOCAL_WORLD_SIZE": layout.ranks_per_node,
            "GROUP_RANK": node,
            "GROUP_WORLD_SIZE": layout.nodes,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TORCHELASTIC_RESTART_COUNT": 0,
            # Somebody listens there already (meeting.py): every rank is a client, rank 0 too.
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            # All GPUs of the machine, whatever node the layout pretends to.
            "DTCOURSE_DEVICE": device.for_rank(index, layout.kind),
            "OMP_NUM_THREADS": layout.threads,
        }
        environment = {**base, **{name: str(value) for name, value in own.items()}}
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            environment.setdefault(name, loopback)
        for_ranks.append(environment)
    return for_ranks


def typed_sources() -> dict[str, list[str]]:
    """Code that was typed, not read from a file, so that a rank's traceback can show its lines."""
    typed = {}
    for name, entry in list(linecache.cache.items()):
        if len(entry) == 4 and entry[1] is None and not name.startswith("<frozen"):
            typed[name] = entry[2]
    return typed
