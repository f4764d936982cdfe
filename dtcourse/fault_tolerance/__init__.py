"""Training that survives: checkpoints that are complete or not there, and a resume that is exact.

In the order in which to read them (each write, fsync and rename of theirs passes checkpoint/files.py):

    mark.py           the file that says that a checkpoint is complete, and sums up all others
    folders.py        a folder that appears at once or not at all
    power_cuts.py     what a power cut may leave, from the record of what was done
    checkpoints.py    all ranks write one; the newest complete one is found
    background.py     it is written while training goes on
    training_state.py all that a run must find again; loaded all or nothing
    random_states.py  of it: what draws random numbers
    bucket_layout.py  of it: which gradients share a bucket
    fingerprints.py   whether it is the same run, by its data
    virtual_ranks.py  the same bits on any number of ranks
    preemption.py     a signal, one step on which all ranks agree, a save, a new start
    guard/            a step that would spoil the model is left out, by all ranks
    interval.py       how often to save: Young's and Daly's formulas, and what time is wasted
    failing_job.py    the same on a virtual clock: a job that saves, fails and starts again
    watching/         heartbeats: which rank is dead, stopped or hung
    packed.py         a state as two tensors that a collective can send
    replicated.py     what each replica has in memory
    rank_state.py     what one rank keeps, however the model is cut
    holdings.py       which step all can go back to, from what each has in memory
    kept.py           these copies, by step
    peer_copies.py    each rank's neighbour keeps a copy of its state: a lost rank's successor needs no file
    elastic/          workers die, leave and join between steps, and training goes on without a file
    run_log.py        what happened to a run, and what its time was worth
    silence.py        ranks that neither work nor die, seen from outside
    heard_beats.py    the same by heartbeats: also those that hang
    recovery.py       started again after each failure, until it is done
    chaos/            a monkey that breaks what it can reach

It knows no technique: what is written and read is a function's business, such as dtcourse.checkpoint's. A step that
runs out of memory is the memory package's: dtcourse/memory/halving.py.
"""

from dtcourse.fault_tolerance.background import BackgroundCheckpoints, Stall
from dtcourse.fault_tolerance.bucket_layout import BucketLayout
from dtcourse.fault_tolerance.checkpoints import Checkpoints, Found, NotSaved
from dtcourse.fault_tolerance.elastic import Elastic, ElasticJob
from dtcourse.fault_tolerance.failing_job import FailingRun, draw_lives, simulate, wasted
from dtcourse.fault_tolerance.fingerprints import fingerprint
from dtcourse.fault_tolerance.heard_beats import HeardBeats
from dtcourse.fault_tolerance.holdings import StateLost
from dtcourse.fault_tolerance.interval import (
    LLAMA_3,
    FailingJob,
    FailureLog,
    best_interval,
    daly,
    expected_waste,
    first_order_waste,
    young,
)
from dtcourse.fault_tolerance.kept import Kept
from dtcourse.fault_tolerance.mark import NotComplete
from dtcourse.fault_tolerance.peer_copies import PeerCopies
from dtcourse.fault_tolerance.preemption import REQUEUE, Preemption, run_until_done
from dtcourse.fault_tolerance.random_states import RandomStates
from dtcourse.fault_tolerance.rank_state import RankState
from dtcourse.fault_tolerance.recovery import Limits, Recovery
from dtcourse.fault_tolerance.replicated import Replicated
from dtcourse.fault_tolerance.run_log import Goodput, RunLog, goodput
from dtcourse.fault_tolerance.silence import Deadline
from dtcourse.fault_tolerance.training_state import TrainingState
from dtcourse.fault_tolerance.virtual_ranks import VirtualRanks
from dtcourse.fault_tolerance.watching import Heartbeat, Watcher

__all__ = [
    "LLAMA_3",
    "REQUEUE",
    "BackgroundCheckpoints",
    "BucketLayout",
    "Checkpoints",
    "Deadline",
    "Elastic",
    "ElasticJob",
    "FailingJob",
    "FailingRun",
    "FailureLog",
    "Found",
    "Goodput",
    "HeardBeats",
    "Heartbeat",
    "Kept",
    "Limits",
    "NotComplete",
    "NotSaved",
    "PeerCopies",
    "Preemption",
    "RandomStates",
    "RankState",
    "Recovery",
    "Replicated",
    "RunLog",
    "Stall",
    "StateLost",
    "TrainingState",
    "VirtualRanks",
    "Watcher",
    "best_interval",
    "daly",
    "draw_lives",
    "expected_waste",
    "fingerprint",
    "first_order_waste",
    "goodput",
    "run_until_done",
    "simulate",
    "wasted",
    "young",
]
