"""Measuring what a step really does: what its time is spent on, and where its bytes live.

monitor.py           times the steps of a training loop, live and as a report
report.py            throughput, percentiles and the split of the step, as a table and as JSON
operators.py         what a step computes, operator by operator: FLOPs (and which are recomputed), bytes, seconds
throughput.py        samples and tokens per second, MFU and HFU, from them
kernels.py           what torch.profiler saw, as a Timeline
communication.py     how much of the communication hides behind computation, and how much is waited for
memory.py            what a model holds: parameters, gradients, optimizer states, buffers, saved activations
memory_tracker.py    every storage of a step from birth to death: the curve, the peak, and what was alive at it
collective_bench.py  latency and bus bandwidth of collectives over message sizes, inside the ranks of a group
collective_lines.py  the same beside what the link between two ranks, measured by messages alone, says they take
roofline.py          what this machine's multipliers, memory and link allow, and a step's operators beside it
scaling_study.py     a step on 1, 2, 4, ... ranks, strong and weak, in one call
scaling_fits.py      the laws of Amdahl and Gustafson, alpha and beta, fitted to it, with bootstrap intervals
tracking.py          a run's parameters, metrics over the ranks, artefacts, environment and models, in local files
tracking_files.py    those files, written whole, read back and compared
tracking_mlflow.py   a tracked run, taken into MLflow over SQLite
torch_trace.py       a file of torch.profiler as events of its rank
merged_trace.py      those of all ranks and our own timeline on one clock, as one file for Perfetto
diagnosis/           why a run takes as long as it does, in a sentence: `diagnose(run)`
replay.py            the recorded messages of a run, put back into the steps of its algorithm
"""

from dtcourse.profiling.monitor import Monitor
from dtcourse.profiling.report import Report, Step

__all__ = ["Monitor", "Report", "Step"]
