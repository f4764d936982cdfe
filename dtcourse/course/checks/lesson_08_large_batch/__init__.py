"""The checks of lesson 08: learning rates in samples, LARS and clipping over shards, a diagnosis
of clipping, the best batch.
"""

# In the order of the notebook.
EXERCISES = (
    "learning_rate",
    "sharded_lars",
    "clip_gradients",
    "diagnose_clipping",
    "choose_batch",
)
