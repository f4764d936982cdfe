"""The checks of lesson 17b: micro-batches for a budget, who recomputes, a diagnosis of updates."""

# In the order of the notebook.
EXERCISES = (
    "micro_batches_for",
    "choose_recompute",
    "diagnose_update",
)
