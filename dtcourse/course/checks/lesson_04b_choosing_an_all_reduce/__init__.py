"""The checks of lesson 04b: a ring both ways under DDP, the choice of a route by its cost, a diagnosis."""

# In the order of the notebook.
EXERCISES = (
    "two_way_ring",
    "choose_algorithm",
    "diagnose_trace",
)
