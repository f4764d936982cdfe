"""The checks of lesson 06: DDP with buckets, uneven micro-batches, SyncBatchNorm both ways, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = (
    "ddp_with_buckets",
    "accumulate_uneven",
    "sync_batch_norm",
    "diagnose_training",
    "choose_step",
)
