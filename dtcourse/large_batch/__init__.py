"""Large batches: what to change when many ranks make the batch large, and how to tell when it is too large.

scaling.py      learning rate against batch size; warm-up and batch-size schedules as torch schedulers
lars.py         LARS: a learning rate for each layer, from the ratio of its weights to its gradients
lamb.py         LAMB: the same for Adam
clipping.py     the global norm of gradients that are replicated, or spread over ranks
noise_scale.py  the gradient noise scale, measured from ranks' gradients: the batch beyond which more helps little
"""

from dtcourse.large_batch.clipping import clip_grad_norm, global_norm
from dtcourse.large_batch.lamb import LAMB
from dtcourse.large_batch.lars import LARS
from dtcourse.large_batch.noise_scale import NoiseScale
from dtcourse.large_batch.scaling import (
    BatchSchedule,
    GradualWarmup,
    linear_scaling,
    square_root_scaling,
)

__all__ = [
    "LAMB",
    "LARS",
    "BatchSchedule",
    "GradualWarmup",
    "NoiseScale",
    "clip_grad_norm",
    "global_norm",
    "linear_scaling",
    "square_root_scaling",
]
