"""The checks of lesson 19b: Cannon's algorithm with gradients, a decision that is run, and a diagnosis from logs."""

# In the order of the notebook.
EXERCISES = (
    "cannon",
    "choose_overlap",
    "diagnose_ring",
)
