"""Ranks from a notebook cell: `launch(step, 4)` runs step() in four fresh processes and brings the results back.

launcher.py   launch() and Run: start the ranks, watch them, collect what they return
options.py    which device and backend; what a user may ask for
server.py     the fork server that makes a rank start in milliseconds
rank.py       what runs inside a rank
parcels.py    functions, arguments, results: how they travel (tensors out of band, through shared memory)
failures.py   RankFailure and RankTimeout: who failed, where, and where everyone else was
output.py     printed lines, in rank order
messages.py   send_message and progress, from a rank to the notebook while it runs
torchrun.py   the way out: the same function under torchrun, on any number of nodes
"""

from dtcourse.launch import messages, server
from dtcourse.launch.failures import RankFailure, RankTimeout
from dtcourse.launch.launcher import Run, launch
from dtcourse.launch.messages import progress, send_message
from dtcourse.launch.torchrun import torchrun_command

__all__ = [
    "RankFailure",
    "RankTimeout",
    "Run",
    "launch",
    "progress",
    "send_message",
    "torchrun_command",
]

if messages.in_notebook():  # a script that never launches pays nothing
    server.start_early()
