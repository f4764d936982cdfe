"""The checks of lesson 14: activations by formula, a run's memory, what to give up."""

# In the order of the notebook.
EXERCISES = (
    "kept_bytes",
    "diagnose_memory",
    "choose_memory",
)
