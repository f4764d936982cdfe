"""Elastic training: the world size changes between two steps, and training goes on with the state in memory.

In the order in which to read them:

    worker.py       what a worker does: train, keep a copy, carry it into the next generation
    generations.py  who trains together: questions and answers over a store
    groups.py       the default group, formed anew, and left so that nobody waits
    roster.py       who is in the next generation
    job.py          the workers, started, watched and told
    recovering.py   a job that is kept going, with a log
    restarts.py     the other way: torchrun ends all and starts them again, from a file
"""

from dtcourse.fault_tolerance.elastic.job import ElasticJob
from dtcourse.fault_tolerance.elastic.recovering import ElasticRecovery
from dtcourse.fault_tolerance.elastic.restarts import restarting_command, resume, start_number
from dtcourse.fault_tolerance.elastic.roster import Generation
from dtcourse.fault_tolerance.elastic.worker import Elastic

__all__ = [
    "Elastic",
    "ElasticJob",
    "ElasticRecovery",
    "Generation",
    "restarting_command",
    "resume",
    "start_number",
]
