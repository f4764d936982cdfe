"""The checks of lesson 13: a schedule in two halves, a diagnosis, a decision."""

# In the order of the notebook.
EXERCISES = (
    "two_halves",
    "diagnose_schedule",
    "choose_sending",
)
