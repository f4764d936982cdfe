"""A step that would spoil the model is not taken: losses and gradients that are not finite, losses that jump.

spikes.py      which loss is a jump: by the running median and the deviation from it
copies.py      what a step changes, copied in memory and put back
loss_guard.py  all ranks look, and all do the same: skip the step, go back, lower the learning rate, or stop
"""

from dtcourse.fault_tolerance.guard.copies import Attributes, Copies, Stateful, States, Tensors
from dtcourse.fault_tolerance.guard.loss_guard import LossGuard, Unstable, Verdict
from dtcourse.fault_tolerance.guard.lowering import lowering
from dtcourse.fault_tolerance.guard.spikes import Spikes

__all__ = [
    "Attributes",
    "Copies",
    "LossGuard",
    "Spikes",
    "Stateful",
    "States",
    "Tensors",
    "Unstable",
    "Verdict",
    "lowering",
]
