"""The checks of lesson 04: a ring both ways under DDP, costs, recursive doubling, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = (
    "two_way_ring",
    "choose_algorithm",
    "recursive_doubling",
    "diagnose_all_reduce",
    "choose_broadcast",
)
