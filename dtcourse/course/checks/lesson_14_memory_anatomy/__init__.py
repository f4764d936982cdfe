"""The checks of lesson 14: activations by formula, a run's memory, a scaler for several ranks,
16 bits with one rounding, what to give up.
"""

# In the order of the notebook.
EXERCISES = (
    "kept_bytes",
    "diagnose_memory",
    "scaler",
    "all_reduce_16",
    "choose_memory",
)
