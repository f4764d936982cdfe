"""Which part of a job this process is, as what started it says."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from dtcourse.launch.cluster import controller


@dataclass(frozen=True)
class Station:
    """One agent's place in its job.

    number:  among the agents of the job
    node:    the name of the node it is on
    attempt: how often the scheduler had started the job before
    address: by which the other nodes reach this one; empty: to be asked of Slurm when it is needed
    """

    number: int
    node: str
    attempt: int = 0
    address: str = ""

    def known_address(self) -> str:
        """The name or the address by which the other nodes reach this one."""
        # By the name that Slurm itself uses to reach it. The node's own idea of its name may be a loopback address.
        return self.address or controller.details("node", self.node).get("NodeAddr", self.node)


def of_slurm() -> Station:
    """As Slurm's variables say."""
    return Station(
        int(os.environ.get("SLURM_NODEID", 0)),
        os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        int(os.environ.get("SLURM_RESTART_COUNT", 0)),
        os.environ.get("DTCOURSE_HEAD", ""),  # slurm.py: asked before a container hides Slurm
    )
