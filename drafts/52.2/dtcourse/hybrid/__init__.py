"""Hybrid parallelism: one unchanged model, every technique, each over its own axis of one mesh.

In the order in which to read them:

    config.py        the degrees, the order of the axes, and what does not fit together
    axes.py          the groups of a mesh: one axis, or several taken as one
    parallelize.py   what is done to the model, technique after technique
    training.py      one step: tokens, loss, gradients' means, norm
    layout.py        who holds what
    volume.py        which axis talks how much
    virtual.py       a step on one rank of thousands, traced without the others
    moving.py        a pipeline alone: stages that follow the ranks' measured speeds
    moving_layers.py a layer on its way, with its optimizer's states; moving_checks.py says what cannot go
    moving_cuts.py   which layers for which rank, by speed and memory; timed_pipeline.py measures the speed

    from dtcourse import hybrid
    hybrid.parallelize(model, mesh, config)

Its function keeps the package's name before it: tensor_parallel has another one of that name.
"""

from dtcourse.hybrid.config import HybridConfig
from dtcourse.hybrid.parallelize import parallelize
from dtcourse.hybrid.training import HybridTraining

__all__ = ["HybridConfig", "HybridTraining", "parallelize"]
