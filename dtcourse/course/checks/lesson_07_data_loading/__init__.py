"""The checks of lesson 07: a position for any number of ranks, batches by tokens, a cache of all
ranks, a diagnosis, a choice.
"""

# In the order of the notebook.
EXERCISES = (
    "resume_anywhere",
    "batches_by_tokens",
    "share_cache",
    "diagnose_loader",
    "choose_loading",
)
