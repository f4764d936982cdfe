"""Why a recorded run takes as long as it does, in a sentence; in the order in which to read:

matching.py       the two ends of a message, the calls of a collective
critical_path.py  the chain over all ranks that the run's length comes from
evidence.py       window, path, links and counters of a recording
without.py        how long the run would take without some collectives
causes.py         what can cost time, and how it is told
diagnose.py       all of it: `diagnose(run)`
"""

from dtcourse.profiling.diagnosis.causes import Cause
from dtcourse.profiling.diagnosis.critical_path import Segment, critical_path
from dtcourse.profiling.diagnosis.diagnose import Diagnosis, diagnose

__all__ = ["Cause", "Diagnosis", "Segment", "critical_path", "diagnose"]
