"""The checks of lesson 13: a schedule in two halves, a diagnosis."""

# In the order of the notebook.
EXERCISES = (
    "two_halves",
    "diagnose_schedule",
)
