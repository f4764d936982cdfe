"""The checks of lesson 17: an inner stage, micro-batches for a budget, a diagnosis, a table with one owner."""

# In the order of the notebook.
EXERCISES = (
    "inner_stage",
    "micro_batches_for",
    "diagnose",
    "one_owner",
)
