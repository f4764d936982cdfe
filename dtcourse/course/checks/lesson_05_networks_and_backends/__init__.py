"""The checks of lesson 05: a hidden link, NCCL's log, a busiest link, an interface and an algorithm."""

# In the order of the notebook.
EXERCISES = (
    "measure_link",
    "read_log",
    "busiest_link",
    "choose_way",
)
