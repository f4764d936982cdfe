"""The checks of lesson 01: bytes, uneven shares, a diagnosis of one step."""

# In the order of the notebook.
EXERCISES = (
    "memory_wall",
    "average_uneven",
    "diagnose_run",
)
