"""The checks of lesson 06: DDP with buckets, accumulation of uneven micro-batches, SyncBatchNorm both ways."""

# In the order of the notebook.
EXERCISES = (
    "ddp_with_buckets",
    "accumulate_uneven",
    "sync_batch_norm",
)
