"""The checks of lesson 13: a schedule of two halves, a diagnosis, a decision that is run."""

# In the order of the notebook.
EXERCISES = (
    "two_halves",
    "diagnose_schedule",
    "choose_slices",
)
