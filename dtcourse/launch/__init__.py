"""Ranks from a notebook cell: `launch(step, 4)` runs step() in four fresh processes and brings the results back.

launcher.py       launch()
place.py          use_cluster(): where a notebook's launches go
options.py        which device and backend; what a user may ask for
processes.py      the ranks of one launch: started, watched, gone in the end
leaving.py        how they leave, or stay
server.py         the fork server that makes a rank start in milliseconds
server_process.py how its process begins: as a new Python, or as a copy of this one
sockets.py        where its socket lies, and those of others
parts.py          what of PyTorch only some ranks need, and whether a call does
template.py       a process split off from it that has the course loaded, until a file of the course changes
template_process.py  what runs in it: loads modules, looks at itself, splits off ranks
course_files.py   the course's own files, and whose a module is
huge_pages.py     what ranks share with it in fewer, larger pages
standby.py        spare ranks, split off from the template while the notebook is idle
member.py         a rank as its launch sees it: its process, and our ends of its pipes
memory.py         how much memory is left for these
again.py          whether a rank may serve another launch, where launches share theirs (judging exercises)
rank.py           what runs inside a rank
own_process.py    what makes a process that was split off a rank's own
apart.py          ranks that cannot look into one another
distrust.py       for a process that launches code of people whom it does not trust
environment.py    what a rank finds around it: torchrun's variables, the notebook's own
log_settings.py   what the notebook has set of logging and warnings
each.py           an argument of which each rank gets its own alone
sendable.py       the call, serialized, and what is said of what cannot be sent
by_value.py       what a notebook defines, for the processes that Python itself starts
serialization.py  how functions, arguments and results travel (tensors out of band, through shared memory)
deaths.py         who has died, told to the ranks that live, where these go on
lost_peers.py     a rank that waits for one of those is woken
failures.py       RankFailure and RankTimeout: who failed, where, and where everyone else was
run.py            Run: what came back
handle.py         launch(..., wait=False): a Run that is still to come
magic.py          %dtcourse release
interrupts.py     Ctrl-C while ranks run, and its like for another thread
output.py         printed lines, in rank order
recording.py      the flight recorder of a rank, where one is asked for
rank_log.py       a rank's log, where one is asked for
reporting.py      send_message and progress, from a rank to the notebook while it runs
waiting.py        what is going on, where it takes longer than a second
torchrun.py       the way out: the same function under torchrun, on any number of nodes
target.py         a function and its arguments, named on a command line
cluster/          launch(..., cluster="slurm") or "ray": the same cell on the nodes of a cluster
"""

from dtcourse.launch import by_value as by_value
from dtcourse.launch import magic, reporting, server, template, waiting
from dtcourse.launch.failures import RankFailure, RankTimeout
from dtcourse.launch.handle import Cancelled, Handle
from dtcourse.launch.launcher import launch
from dtcourse.launch.place import shared_folder, use_cluster
from dtcourse.launch.reporting import progress, send_message
from dtcourse.launch.run import Run
from dtcourse.launch.torchrun import torchrun_command

__all__ = [
    "Cancelled",
    "Handle",
    "RankFailure",
    "RankTimeout",
    "Run",
    "launch",
    "progress",
    "send_message",
    "shared_folder",
    "torchrun_command",
    "use_cluster",
]


def begin_in_notebook() -> None:
    """Has ready what a notebook's launches need, and %dtcourse. A script that never launches pays nothing."""
    server.start_early()
    template.start_early()
    waiting.watch_cells(template.go_on)
    magic.register()


if reporting.in_notebook():
    begin_in_notebook()
