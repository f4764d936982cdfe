"""A cluster made out of two cores, honestly: every operation and every message really happens, and takes the time that
it would take there.

    run = launch(step, 8, devices=EmulatedDevice(flops=10e12, bandwidth=1e12),
                 network=EmulatedNetwork(latency=5e-6, bandwidth=25e9))

What it proves is composition (order, overlap, waiting), never the constants: those are put in.

In the order in which to read them:

    device.py       EmulatedDevice: an operation takes max(FLOPs / flops, bytes / bandwidth)
    operations.py   how many FLOPs and bytes an operation of torch is
    network.py      EmulatedNetwork: latency, bandwidth and gap of the links; Ports: who waits for whom
    clock.py        Lane and VirtualClock: every rank carries its own time, and nobody sleeps
    wall.py         WallClock: the same costs, slept; for programs in which arrival order decides
    counting.py     the mode of torch that sees each operation of a rank and moves its clock
    cluster.py      EmulatedCluster: all of it together, as launch gives it to a rank

Inside a rank: `emulation.now()`, `emulation.sleep(seconds)`, `emulation.account()`.
"""

from __future__ import annotations

from dtcourse.emulation.clock import Account, account, now, sleep
from dtcourse.emulation.device import EmulatedDevice
from dtcourse.emulation.network import EmulatedNetwork

__all__ = ["Account", "EmulatedDevice", "EmulatedNetwork", "account", "now", "sleep"]
