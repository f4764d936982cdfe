"""The checks of lesson 06b: uneven micro-batches, SyncBatchNorm both ways, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = (
    "accumulate_uneven",
    "sync_batch_norm",
    "diagnose_training",
    "choose_options",
)
