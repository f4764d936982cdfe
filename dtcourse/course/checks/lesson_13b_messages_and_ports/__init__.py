"""The checks of lesson 13b: a decision that is run, a diagnosis."""

# In the order of the notebook.
EXERCISES = (
    "choose_sending",
    "diagnose_lazy",
)
