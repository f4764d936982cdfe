"""The checks of lesson 05: a hidden link measured, a matrix of times read, ranks placed."""

# In the order of the notebook.
EXERCISES = (
    "measure_link",
    "diagnose_times",
    "place_ranks",
)
