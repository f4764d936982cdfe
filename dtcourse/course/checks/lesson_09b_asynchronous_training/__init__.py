"""The checks of lesson 09b: two diagnoses, a decision that is run."""

# In the order of the notebook.
EXERCISES = (
    "diagnose_server",
    "diagnose_worker",
    "choose_asynchronous",
)
