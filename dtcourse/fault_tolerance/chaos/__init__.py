"""Chaos: a seeded monkey outside the ranks breaks what it can reach, and the run has to come through unchanged.

    faults.py  what it can do with process ids and files alone: kill, stop, delay, fill, flip, truncate, preempt,
               and a rank with the neighbour that keeps its copy
    plans.py   what it will do in a run, drawn from a seed: when, to how many at once
    monkey.py  does it, beside the launcher, and writes it into the run's log
    report.py  what came of it, run by run and over all

The ranks know nothing of it. What it breaks is what breaks in life: there the causes are power, heat, memory, disks and
schedulers. Source: Basiri et al., Chaos Engineering (IEEE Software 2016).
"""

from dtcourse.fault_tolerance.chaos.faults import FROM_FILES, FROM_MEMORY, KINDS
from dtcourse.fault_tolerance.chaos.monkey import Monkey
from dtcourse.fault_tolerance.chaos.plans import Strike, plan
from dtcourse.fault_tolerance.chaos.report import Report, over_all

__all__ = ["FROM_FILES", "FROM_MEMORY", "KINDS", "Monkey", "Report", "Strike", "over_all", "plan"]
