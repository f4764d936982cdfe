"""The checks of lesson 05b: a matrix of times, ranks to place."""

# In the order of the notebook.
EXERCISES = (
    "diagnose_times",
    "place_ranks",
)
