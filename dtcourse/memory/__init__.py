"""Memory on one device: where it goes, and how to need less of it, or to survive having too little.

In the order in which to read them:

    mixed_precision.py    16-bit parameters in the model, float32 master weights in the optimizer
    autocasting.py        float32 parameters, 16-bit arithmetic: which operation runs in which type
    scaled_gradients.py   the gradients that a loss scaler looks at and divides
    loss_scaling.py       static and dynamic loss scaling, so that float16 gradients do not vanish
    overflow.py           name the module where half precision overflows
    checkpointing.py      forget activations, compute them again in backward
    selective.py          checkpointing that keeps the outputs of some operations
    offload.py            activations wait in host memory between forward and backward
    parameter_offload.py  parameters come to the device one layer at a time
    oom.py                an out-of-memory error explained; a device with little memory, emulated
    halving.py            a step that runs out of memory, survived by halving the micro-batch
    attention*.py         attention that never holds all its scores
    allocator.py          what a caching allocator does, and how it fragments
"""

from dtcourse.memory.autocasting import autocast
from dtcourse.memory.checkpointing import checkpoint, checkpoint_sequential, square_root_segments
from dtcourse.memory.halving import HalvedStep, train_step_with_halving
from dtcourse.memory.loss_scaling import GradScaler, StaticLossScaler
from dtcourse.memory.mixed_precision import MasterWeights
from dtcourse.memory.offload import offload_activations
from dtcourse.memory.oom import MemoryLimit, explain, is_out_of_memory
from dtcourse.memory.overflow import raise_on_overflow
from dtcourse.memory.parameter_offload import OffloadedParameters
from dtcourse.memory.selective import MATMULS, CheckpointError

__all__ = [
    "MATMULS",
    "CheckpointError",
    "GradScaler",
    "HalvedStep",
    "MasterWeights",
    "MemoryLimit",
    "OffloadedParameters",
    "StaticLossScaler",
    "autocast",
    "checkpoint",
    "checkpoint_sequential",
    "explain",
    "is_out_of_memory",
    "offload_activations",
    "raise_on_overflow",
    "square_root_segments",
    "train_step_with_halving",
]
