"""The checks of lesson 01: bytes, Amdahl's law, uneven shares, a diagnosis of one step, a choice of ranks per run."""

# In the order of the notebook.
EXERCISES = (
    "memory_wall",
    "amdahl",
    "average_uneven",
    "diagnose_run",
    "ranks_per_run",
)
