"""What is wrong with a distributed program, found from what its ranks hold and left. In the order in which to read:

hang/         diagnose_hang: from the flight recorder's records of all ranks, who did what instead
sentences.py  how ranks and lines are put in words
held.py       what a rank holds of a model and its optimizer: names, pieces, sums
replicas.py   whether ranks that ought to hold the same still do, on a schedule
seeds.py      random numbers that ranks share, and those that each has alone
data_order.py which samples each rank reads, and whether an epoch covers each once
determinism.py  what gives the same bits twice here, and all that torch offers for it
environment.py  what a run ran in, and what differs from another's or over the ranks
logs.py       the ranks' logs, merged by clock
losses.py     two layouts' losses: the first step that differs, and where to look then
unasked/      tools that watch a rank of any program, and say what is wrong or nothing
gallery/      runs the scripts of gallery/, real mistakes, with all tools watching

    launch(step, 4, timeout=20, env=recorded_in("records"))     # hangs: RankTimeout, and a record of each rank
    print(diagnose_hang("records"))

In a program of your own, under torchrun or not, without a line of it changed:

    torchrun --nproc-per-node 4 -m dtcourse.debugging --record records train.py --epochs 3
    python -m dtcourse.debugging records

(with --watch before the folder, every tool of unasked/ watches besides)

or two lines: `from dtcourse.collectives import flight; flight.start("records")`. A rank whose call waits for a minute
has all ranks write their records; so does `kill -USR1` of each.
"""

from dtcourse.debugging.data_order import DataOrder, data_order, gathered_order
from dtcourse.debugging.determinism import Determinism, determinism, deterministic
from dtcourse.debugging.environment import (
    compare_environments,
    environment,
    environments_differ,
    save_environment,
)
from dtcourse.debugging.hang import (
    Diagnosis,
    Record,
    Records,
    diagnose_hang,
    read_records,
    recorded_in,
)
from dtcourse.debugging.logs import Logs, logged_in, read_logs
from dtcourse.debugging.losses import LossDifference, compare_layouts
from dtcourse.debugging.replicas import Drift, ReplicasDrifted, ReplicaWatch, compare_replicas
from dtcourse.debugging.seeds import (
    RankSeeds,
    meeting,
    rank_seeds,
    shared_streams,
    streams_in_words,
)

__all__ = [
    "DataOrder",
    "Determinism",
    "Diagnosis",
    "Drift",
    "Logs",
    "LossDifference",
    "RankSeeds",
    "Record",
    "Records",
    "ReplicaWatch",
    "ReplicasDrifted",
    "compare_environments",
    "compare_layouts",
    "compare_replicas",
    "data_order",
    "determinism",
    "deterministic",
    "diagnose_hang",
    "environment",
    "environments_differ",
    "gathered_order",
    "logged_in",
    "meeting",
    "rank_seeds",
    "read_logs",
    "read_records",
    "recorded_in",
    "save_environment",
    "shared_streams",
    "streams_in_words",
]
