"""A flight recorder: the last collectives and messages of each rank, for when they hang. In the order in which to read:

entry.py     what is kept of one of them
recorder.py  the last N, in a ring; started, posted, waited for, finished
watched.py   what torch.distributed's own groups do, seen from outside
record.py    a rank's record as a file, written all or nothing
asking.py    when it is written: asked for by SIGUSR1, after a long wait, when the rank leaves
switch.py    on and off

Two lines switch it on in any program, under torchrun or not:

    from dtcourse.collectives import flight
    flight.start("records")                      # a folder that all ranks can write to

or none at all: `DTCOURSE_FLIGHT_RECORDER=records` for ranks of launch and of `-m dtcourse.launch`, and
`torchrun ... -m dtcourse.debugging --record records train.py` for any script. dtcourse.debugging reads what is written.

What is recorded: collectives and messages of torch's groups, whoever calls them (DDP's C++ as well), and of our own
algorithms and backends, each as one call: the messages inside of one are not. torch's own recorder
(TORCH_FR_BUFFER_SIZE) leaves gloo's collectives "scheduled" for ever; here a call is finished when its wait() has
returned or its handle says so.
"""

from dtcourse.collectives.flight.record import write
from dtcourse.collectives.flight.switch import from_environment, leave, running, start, stop

__all__ = ["from_environment", "leave", "running", "start", "stop", "write"]
