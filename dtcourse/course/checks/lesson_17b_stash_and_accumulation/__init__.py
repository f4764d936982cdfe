"""The checks of lesson 17b: micro-batches for a budget, and a diagnosis of updates from many micro-batches."""

# In the order of the notebook.
EXERCISES = (
    "micro_batches_for",
    "diagnose_update",
)
