"""The checks of lesson 14b: a scaler for a sharded model, 16 bits with one rounding, a run's numbers."""

# In the order of the notebook.
EXERCISES = (
    "sharded_scaler",
    "all_reduce_16",
    "diagnose_numbers",
)
