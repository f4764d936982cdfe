"""The checks of lesson 07: an exact partition, a position for any number of ranks, batches by tokens, a cache for epochs."""

# In the order of the notebook.
EXERCISES = (
    "exact_partition",
    "resume_anywhere",
    "batches_by_tokens",
    "epoch_cache",
)
