"""The checks of lesson 04: recursive doubling, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = (
    "recursive_doubling",
    "diagnose_all_reduce",
    "choose_broadcast",
)
