"""The checks of lesson 08: a run that counts samples, LARS on flat shards, clipping over shards, a diagnosis
of clipping, the best batch.
"""

# In the order of the notebook.
EXERCISES = (
    "train_by_samples",
    "flat_lars",
    "clip_gradients",
    "diagnose_clipping",
    "choose_batch",
)
