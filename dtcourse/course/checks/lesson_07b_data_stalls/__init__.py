"""The checks of lesson 07b: batches by tokens, a cache of all ranks, a choice, a diagnosis."""

# In the order of the notebook.
EXERCISES = (
    "batches_by_tokens",
    "share_cache",
    "choose_loading",
    "diagnose_stall",
)
