"""The checks of lesson 07: a position for any number of ranks, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = (
    "resume_anywhere",
    "diagnose_loader",
    "choose_shards",
)
