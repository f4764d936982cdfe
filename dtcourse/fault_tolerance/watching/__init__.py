"""Watching: which rank is dead, stopped or hung, said by heartbeats within seconds, and nothing said of healthy ones.

In each rank:

    with Heartbeat(where) as watch:         # a thread beats once a second
        for step in range(first, last):
            ...
            watch.step(step)                # at the end of each step
            with watch.pause("saving"):     # something long and legal: no hang, and no part of a step
                ...

Outside, or in a thread of some rank:

    watcher = Watcher(where, ranks=4)
    look = watcher.wait(timeout=60)         # or watcher.look(), now and then: at least once a second
    if look:                                # something is wrong
        print(look)                         # "rank 2 is dead: no beat for 2.1 s, ..."
        for fault in look.reasons:          # without those that only wait for them; all: look.faults
            fault.rank, fault.kind, fault.pid, fault.step, fault.since, fault.stacks

`where` is a folder that all see (launch on one machine: one in /dev/shm costs no disk), "tcp://address:port" of a
TCPStore, or None in ranks: the store at MASTER_ADDR and MASTER_PORT, which torchrun and launch both keep. Who starts
the job again in the same place gives both sides attempt=1, 2, ...; torchrun's own count is taken by itself.

Kinds that are faults: "dead", "stopped", "dead or stopped" (on a machine that the watcher does not see), "hung", and
"never began", if the watcher is given its patience. Kinds that are none: "running", "starting" (before a first step no
hang can be told), "pausing", "waiting", "silent", "left", "absent". verdicts.py has the rules.

In the order in which to read:

    beat.py       what a rank says of itself, and its limits
    process.py    what /proc says of it
    progress.py   steps, and the time without one that counts
    heartbeat.py  the thread that beats
    places.py     where beats lie: a folder, a store
    verdicts.py   the rules
    sentences.py  in words
    watcher.py    who reads
"""

from dtcourse.fault_tolerance.watching.heartbeat import Heartbeat
from dtcourse.fault_tolerance.watching.verdicts import Verdict
from dtcourse.fault_tolerance.watching.watcher import Look, Watcher

__all__ = ["Heartbeat", "Look", "Verdict", "Watcher"]
