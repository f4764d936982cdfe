"""Two nodes that share nothing but a wire: network namespaces of this machine, each with one address of its own.

On the throw-away Slurm both nodes are 127.0.0.1, so a script that gives a node the other one's address works there.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

INTERFACE = "wire"  # its name on each node


def can_be_had() -> bool:
    """Whether this process may make network namespaces."""
    name = f"dtcourse-{os.getpid()}-probe"
    try:
        return not _tried("netns", "add", name) and not _tried("netns", "del", name)
    except FileNotFoundError:
        return False


def _tried(*words: str) -> int:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def two_nodes(addresses: dict[str, str]) -> Iterator[dict[str, list[str]]]:
    """{node: the words before a command that run it there}; the namespaces are gone afterwards.

    addresses: {node: its address}, of two nodes in one network of 255
    """
    places = {node: f"dtcourse-{os.getpid()}-{node}" for node in addresses}
    with ExitStack() as stack:
        for place in places.values():
            _ip("netns", "add", place)
            stack.callback(_ip, "netns", "del", place)
        first, second = places.values()
        wire = ["type", "veth", "peer", "name", INTERFACE, "netns", second]
        _ip("link", "add", INTERFACE, "netns", first, *wire)
        for node, place in places.items():
            _ip("-n", place, "address", "add", f"{addresses[node]}/24", "dev", INTERFACE)
            _ip("-n", place, "link", "set", INTERFACE, "up")
            _ip("-n", place, "link", "set", "lo", "up")
        yield {node: ["ip", "netns", "exec", place] for node, place in places.items()}
