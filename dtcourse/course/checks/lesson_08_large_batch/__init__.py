"""The checks of lesson 08: rates in samples, a LARS step, clipping of replicated and sharded gradients, the noise scale."""

# In the order of the notebook.
EXERCISES = (
    "learning_rate",
    "lars_step",
    "clip_gradients",
    "noise_scale",
)
