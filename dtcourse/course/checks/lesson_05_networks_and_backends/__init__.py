"""The checks of lesson 05: a hidden link measured, a matrix of times and NCCL's log read, a busiest link, ranks placed."""

# In the order of the notebook.
EXERCISES = (
    "measure_link",
    "diagnose_times",
    "read_log",
    "busiest_link",
    "place_ranks",
)
