"""The checks of lesson 19b: Cannon's algorithm with gradients, and a decision that is run."""

# In the order of the notebook.
EXERCISES = (
    "cannon",
    "choose_overlap",
)
