"""The checks of lesson 05: a hidden link, a matrix of times, NCCL's log, a busiest link, ranks to place."""

# In the order of the notebook.
EXERCISES = (
    "measure_link",
    "diagnose_times",
    "read_log",
    "busiest_link",
    "place_ranks",
)
